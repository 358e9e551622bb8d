"""Stage fit_baselines: popularity, item-to-item and likeness by content, before what is held out.

Likeness by content learns nothing from events; it is left out where items have no content.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, tie_orders
from pipelines.training.baselines import fit_models, save_models


def fit_baselines(context: StageContext) -> StageRows:
    """Fit the models once for each order of tied times."""
    features = context.inputs["build_features"]
    num_events = 0
    for order in tie_orders(features):
        inputs = read_inputs(features, context.inputs["embed_items"], order)
        save_models(fit_models(inputs, context.config, "train"), context.output / order)
        num_events += int(
            (inputs.sequences.visible_end("train") - inputs.sequences.offsets[:-1]).sum()
        )
    return StageRows(rows_in=num_events, rows_out=inputs.sizes.num_item_rows - 1)
