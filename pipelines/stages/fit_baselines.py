"""Stage fit_baselines: the models without a training, on train.

Popularity, item-to-item, EASE and content similarity. Where a model may choose among
settings, validation chooses, and refits take what it chose.

Content similarity learns nothing from events; it is left out where items have no content. An
increment takes the settings of the served models.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import RELEASED
from pipelines.inputs.tensors import read_inputs
from pipelines.training.baselines import fit_untrained
from recsys.fitting.queries import GIVEN


def fit_baselines(context: StageContext) -> StageRows:
    """Fit the models."""
    served = context.inputs.get(RELEASED)
    inputs = read_inputs(context.inputs["build_features"], context.inputs["embed_items"])
    chosen = None if served is None else served / "fit_baselines" / GIVEN
    for name, model in fit_untrained(inputs, context.config, "train", chosen).items():
        model.save(context.output / GIVEN / name)
    num_events = (inputs.sequences.visible_end("train") - inputs.sequences.offsets[:-1]).sum()
    return StageRows(rows_in=int(num_events), rows_out=inputs.sizes.num_item_rows - 1)
