"""Stage fit_baselines: the models without a training, on train.

Popularity, item-to-item, EASE, item-kNN and content similarity. Where a model may choose among
settings, validation chooses, and refits take what it chose.

Content similarity learns nothing from events; it is left out where items have no content.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, tie_orders
from pipelines.training.baselines import baselines_of


def fit_baselines(context: StageContext) -> StageRows:
    """Fit the models once for each order of tied times."""
    features = context.inputs["build_features"]
    num_events = 0
    for order in tie_orders(features):
        inputs = read_inputs(features, context.inputs["embed_items"], order)
        for name, model in baselines_of(inputs, context.config, "train").items():
            model.save(context.output / order / name)
        num_events += int(
            (inputs.sequences.visible_end("train") - inputs.sequences.offsets[:-1]).sum()
        )
    return StageRows(rows_in=num_events, rows_out=inputs.sizes.num_item_rows - 1)
