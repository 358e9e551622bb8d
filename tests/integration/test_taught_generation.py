"""The sequence model teaches the generative one: trained, fitted again, and loaded as served."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelines.config.trainings import GenerativeTrainingConfig, SequenceTrainingConfig
from pipelines.inputs.tensors import load_catalogue
from pipelines.presets import PRESETS
from pipelines.semantic_ids.store import read_item_codes
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.generative.model import GenerativeModel
from recsys.models.sequence.model import SequenceModel
from tests.integration.copies import Recsys, copied, options, run_well, stages_before

TAUGHT = (
    "generative_training.teaching.share=0.8",
    "generative_training.teaching.dropped_events=0.2",
    'generative.items="codes_vectors"',
    "generative.carries_place=true",
    # A window has an event more, and the teacher reads all of it.
    "generative.max_length=20",
    "generative_training.max_epochs=12.0",
    "generative_training.epochs_per_evaluation=4.0",
)


@pytest.fixture(scope="module")
def taught(shop: Path, recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = stages_before("train_generative")
    workspace = copied(shop, tmp_path_factory.mktemp("taught"), stages)
    made = options("--stage", ("train_generative", "refit"))
    run_well(recsys, workspace, *options("--set", TAUGHT), *made)
    return workspace


def test_the_student_generates_the_successor(taught: Path) -> None:
    ending = json.loads((taught / "train_generative/given/training.json").read_text())
    assert ending["best_metric"] >= 0.7


@pytest.mark.parametrize("place", ["train_{}/given", "refit"])
def test_vectors_are_those_of_the_sequence_model_trained_on_the_same_events(
    taught: Path, place: str
) -> None:
    catalogue = load_catalogue(taught / "build_features", taught / "embed_items")
    codes = read_item_codes(taught / "build_semantic_ids")
    sequence = SequenceModel.load(taught / place.format("sequence") / "sequence", catalogue)
    folder = taught / place.format("generative") / "generative"
    model = GenerativeModel.load(folder, catalogue, codes.codes, semantic_ids=codes.version)
    torch.testing.assert_close(model.vectors, sequence.all_item_inputs())


def test_without_a_sequence_model_nobody_teaches() -> None:
    plain = replace(PRESETS["auto"](), generative_training=GenerativeTrainingConfig(enabled=True))
    taught = replace(plain.generative_training, teaching=TeachingConfig(share=0.5))
    reads = GenerativeConfig(items="codes_vectors")
    for changes in ({"generative_training": taught}, {"generative": reads}):
        alone = SequenceTrainingConfig(enabled=False)
        with pytest.raises(ValueError, match="needs a sequence model"):
            replace(plain, sequence_training=alone, **changes)
        with_one = SequenceTrainingConfig(enabled=True)
        assert replace(plain, sequence_training=with_one, **changes).generation_is_taught()
