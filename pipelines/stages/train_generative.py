"""Stage train_generative: fit the generative model on train, pick its steps on validation.

Validation is a beam search over the semantic IDs of build_semantic_ids, as in serving, for a sample
of the users. It is off unless ``generative_training.enabled``, and where items have no
semantic IDs; else it is measured, refitted and served (profile ``full``) with the others. The
sequence model may teach it and give it its item vectors.
"""

from __future__ import annotations

from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import retrieval_settings
from pipelines.semantic_ids.store import read_item_codes, read_version
from pipelines.training.train import train_model
from recsys.fitting.generative import GENERATIVE
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.fitting.spec import Data
from recsys.models.names import SEQUENCE


def train_generative(context: StageContext) -> StageRows:
    """Train it; write nothing where it is off or items lack IDs."""
    if not context.config.generative_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    artefact = context.inputs["build_semantic_ids"]
    if read_version(artefact) is None:
        log.print("train_generative: off, because no item has a semantic ID", style="dim")
        return StageRows(rows_in=0, rows_out=0)

    def data_for(inputs: ModelInputs) -> Data:
        taught_by = context.inputs.get("train_sequence")
        return Data(
            inputs=inputs,
            settings=retrieval_settings(context.config),
            item_codes=lambda: read_item_codes(artefact),
            teacher=None if taught_by is None else taught_by / GIVEN / SEQUENCE.name,
        )

    return train_model(context, GENERATIVE, data_for)
