"""A whole replay of a small log: what it knows, what it keeps, what a kill costs."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.evaluation.config import ReplayConfig
from recsys.fitting.queries import ModelInputs, RetrievalSettings
from recsys.models.configs import EaseWeightsConfig, ItemToItemConfig, PopularityConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.replay.experiment import PreparedData, Recipe
from recsys.replay.fits import Replay
from recsys.replay.folder import SERVED
from recsys.replay.measures import measure_replay
from recsys.replay.replay import describe_replay, run
from recsys.replay.steps import SECONDS_PER_DAY
from recsys.retrieval.blend.config import BlendConfig
from recsys.training.passes import ScheduleConfig, TrainingConfig

NUM_CLUSTERS, CLUSTER_SIZE, NUM_USERS, NUM_DAYS = 5, 8, 90, 40


def walks(seed: int = 0) -> Sequences:
    """Each user begins on some day and takes the next item every few days, at times two at once."""
    rng = np.random.default_rng(seed)
    rows, times, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [0]
    for user in range(NUM_USERS):
        length = int(rng.integers(4, 8))
        steps = (int(rng.integers(CLUSTER_SIZE)) + np.arange(length)) % CLUSTER_SIZE
        days = int(rng.integers(NUM_DAYS - 14)) + np.cumsum(rng.integers(0, 4, length))
        rows.append(1 + user % NUM_CLUSTERS * CLUSTER_SIZE + steps)
        times.append(days * SECONDS_PER_DAY)
        lengths.append(length)
    offsets = np.cumsum(lengths)
    offsets = np.concatenate([[0], offsets])
    ends = offsets[1:]
    return Sequences(np.concatenate(rows), offsets, ends, ends, times=np.concatenate(times))


def prepared_of(sequences: Sequences) -> PreparedData:
    """Put a log into the form that a replay reads."""
    num_rows = 1 + NUM_CLUSTERS * CLUSTER_SIZE
    training = TrainingConfig(
        batch_size=32, max_epochs=2.0, schedule=ScheduleConfig(learning_rate=1e-2)
    )
    recipe = Recipe(
        models={
            "popularity": PopularityConfig(),
            "item_to_item": ItemToItemConfig(),
            "ease": EaseWeightsConfig(enabled=True, l2=(1.0, 10.0), history_power=(0.0, 1.0)),
            "sequence": SequenceConfig(embedding_dim=8, hidden_dim=8, max_length=10),
        },
        trainings={"sequence": training},
        blend=BlendConfig(min_found=1),
        retrieval=RetrievalSettings(num_candidates=20),
    )
    rows = torch.arange(num_rows)
    categories = Jagged(1 + (rows - 1).clamp(min=0) // CLUSTER_SIZE, torch.arange(num_rows + 1))
    return PreparedData(
        name="walks",
        data_digest="0123456789abcdef",
        recipe=recipe,
        inputs=ModelInputs(
            sequences=sequences,
            catalogue=ItemCatalogue(torch.zeros(num_rows, 4), categories),
            sizes=FeatureSizes(
                num_item_rows=num_rows, content_dim=4, num_categories=NUM_CLUSTERS + 1
            ),
        ),
    )


CONFIG = ReplayConfig(num_steps=3, first_share=0.6)
MODELS = ("popularity", "item_to_item", "ease", "sequence")


def replayed(log: PreparedData, folder: Path, **changes: object) -> Replay:
    replay = describe_replay(log, replace(CONFIG, **changes), folder, device="cpu")
    run(replay, lambda line: None)
    return replay


def lists(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted(folder.glob("steps/*/lists/*.npz")):
        with np.load(path) as file:
            found[f"{path.parent.parent.name} {path.stem}"] = file["item_rows"]
    return found


@pytest.fixture(scope="module")
def log():
    return prepared_of(walks())


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory):
    return replayed(log, tmp_path_factory.mktemp("replay") / "whole")


def test_every_policy_answers_every_step(whole):
    document = measure_replay(whole)
    names = {(row["policy"], row["row"]) for row in document["rows"]}
    policies = ("full", "incremental", "never")
    assert names == {(policy, row) for policy in policies for row in (SERVED, *MODELS)}
    assert {row["step"] for row in document["rows"]} == {1, 2, 3}
    assert len(document["summary"]) == len(names)
    of_step = {
        (row["policy"], row["step"]): row for row in document["rows"] if row["row"] == "ease"
    }
    # All policies begin with the models of the first step.
    first = [of_step[policy, 1]["metrics"] for policy in policies]
    assert first[0] == first[1] == first[2]
    assert of_step["never", 3]["model_age_days"] > 0 == of_step["full", 3]["model_age_days"]
    assert of_step["never", 3]["fit_seconds"] == 0 < of_step["full", 3]["fit_seconds"]


def test_a_step_knows_nothing_of_what_comes_after_it(whole, tmp_path):
    """The same log with other items from the second step's end on."""
    events = walks()
    items, late = events.item_rows.copy(), events.times >= whole.steps[2].end
    items[late] = 1 + (items[late] + 12) % (NUM_CLUSTERS * CLUSTER_SIZE)
    changed = prepared_of(replace(events, item_rows=items))
    other = replayed(changed, tmp_path, policies=("full", "incremental"))
    before, after = lists(whole.folder.path), lists(other.folder.path)
    for name, rows in after.items():
        same = np.array_equal(before[name], rows)
        assert same == (int(name.split()[0]) <= 2) or name.endswith("popularity"), name


def test_a_killed_replay_goes_on_and_ends_the_same(log, whole, tmp_path):
    folder = tmp_path / "killed"
    shutil.copytree(whole.folder.path, folder)
    # As a kill in step 3 leaves it: no mark that the step is done, and blends not made.
    for name in ("full", "incremental", "never"):
        (folder / "steps" / "3" / f"{name}.json").unlink()
        for step in (1, 2, 3):
            (folder / "steps" / str(step) / "lists" / f"{name}.{SERVED}.npz").unlink()
    kept = (folder / "steps" / "2" / "full.json").stat().st_mtime_ns
    replayed(log, folder)
    assert (folder / "steps" / "2" / "full.json").stat().st_mtime_ns == kept
    before, after = lists(whole.folder.path), lists(folder)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
