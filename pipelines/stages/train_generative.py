"""Stage train_generative: fit the generative model on train, pick its steps on validation.

Validation is a beam search over the semantic IDs of build_semantic_ids, as in serving, for a sample
of the users. It is off unless ``generative_training.enabled``, and where items have no
semantic IDs; else it is measured, refitted and served (profile ``full``) with the others. The
sequence model may teach it and give it its item vectors.
"""

from __future__ import annotations

from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.semantic_ids.artefact import read_item_codes, read_version
from pipelines.training.fitters import ModelFitter, generative_fitter
from pipelines.training.run import train_each_order
from recsys.fitting.inputs import ModelInputs


def train_generative(context: StageContext) -> StageRows:
    """Train once for each order of tied times; write nothing where it is off or items lack IDs."""
    config = context.config
    if not config.generative_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    artefact = context.inputs["build_semantic_ids"]
    if read_version(artefact) is None:
        log.print("train_generative: off, because no item has a semantic ID", style="dim")
        return StageRows(rows_in=0, rows_out=0)

    def fitter_for(inputs: ModelInputs) -> ModelFitter:
        order = inputs.tie_order
        trained = context.inputs.get("train_sequence")
        return generative_fitter(
            config,
            lambda: read_item_codes(artefact, order),
            None if trained is None else trained / order / "sequence",
        )

    return train_each_order(context, fitter_for)
