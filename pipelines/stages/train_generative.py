"""Stage train_generative: fit the generative model on train, pick its steps on validation.

Validation is a beam search over the semantic IDs of build_semantic_ids, as serving makes it, for a
sample of the users. It is off unless ``generative_training.enabled``, and where items have no
semantic IDs; else it is measured, refitted and served (profile ``full``) with the others. The
sequence model may teach it and give it its item vectors.
"""

from __future__ import annotations

from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.semantic_ids.artefact import read_item_codes, read_version
from pipelines.training.generative import fit_generative_model, read_sequence
from pipelines.training.run import (
    TrainingRun,
    train_each_order,
)
from recsys.data.windows import training_windows
from recsys.fitting.inputs import ModelInputs
from recsys.models.generative.model import GenerativeModel
from recsys.training.loop import TrainResult


def train_generative(context: StageContext) -> StageRows:
    """Train once for each order of tied times; write nothing where it is off or items lack IDs."""
    config = context.config
    if not config.generative_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    artefact = context.inputs["build_semantic_ids"]
    if read_version(artefact) is None:
        log.print("train_generative: off, because no item has a semantic ID", style="dim")
        return StageRows(rows_in=0, rows_out=0)

    def fit_on(inputs: ModelInputs, run: TrainingRun) -> tuple[GenerativeModel, TrainResult]:
        codes = read_item_codes(artefact, inputs.tie_order)
        windows = training_windows(inputs.sequences, "train", config.generative.max_length)
        train_config = config.generative_training.for_examples(len(windows))
        trained = context.inputs.get("train_sequence")
        sequence = None if trained is None else read_sequence(trained / inputs.tie_order, inputs)
        return fit_generative_model(
            inputs, codes, config, train_config, run, split="train", sequence=sequence
        )

    return train_each_order(context, "generative", fit_on)
