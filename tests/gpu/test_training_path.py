"""The whole training path on a GPU with torch, numpy and safetensors alone."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.windows import BatchOrder
from recsys.evaluation.ranking import RankingConfig, RankingResult, evaluate_ranking
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes
from recsys.models.two_tower import TwoTower
from recsys.training.checkpoint import checkpoint_paths
from recsys.training.loop import TrainResult, train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, LoopConfig, ScheduleConfig
from tests.recsys.testing.catalogues import drawn_catalogue
from tests.recsys.testing.synthetic import markov_world, sequences

pytestmark = pytest.mark.gpu

NUM_ITEMS = 60
NUM_STEPS = 120
SMALL = TwoTowerConfig(
    embedding_dim=32,
    hidden_dim=64,
    max_history=8,
    dropout=0.1,
    num_uniform_negatives=40,
    backend="torch",
)
INPUTS = FeatureSizes(num_item_rows=NUM_ITEMS + 1, content_dim=8, num_categories=4)
# Float32 sums in another order: scores are cosines, so this is absolute.
SCORE_TOLERANCE = 1e-5


class Killed(Exception):
    """Stands in for a kill between two steps."""


@cache
def world() -> Sequences:
    return sequences(markov_world(200, NUM_ITEMS, events_per_user=12))


CATALOGUE = drawn_catalogue(NUM_ITEMS + 1, 8, seed=5)


def model_on(device: torch.device | str, backend: str = "torch") -> TwoTower:
    torch.manual_seed(3)
    labels = world().item_rows[world().label_positions("train")]
    counts = torch.from_numpy(np.bincount(labels, minlength=NUM_ITEMS + 1))
    return TwoTower(replace(SMALL, backend=backend), INPUTS, CATALOGUE, counts).to(device)


def queries(split: str) -> JaggedBatch:
    return world().queries(world().label_positions(split), max_history=SMALL.max_history)


def evaluated(model: nn.Module, device: torch.device | str, split: str) -> RankingResult:
    assert isinstance(model, TwoTower)
    labels = Jagged.one_each(world().labels(world().label_positions(split)))
    config = RankingConfig(ks=(10,))
    return evaluate_ranking(
        lambda batch: model.score(batch.to(device)), [queries(split)], labels, config
    )


def fit(
    device: torch.device,
    folder: Path,
    *,
    precision: str = "auto",
    backend: str = "torch",
    killed_at: int | None = None,
) -> tuple[TwoTower, TrainResult]:
    model = model_on(device, backend)
    positions = world().label_positions("train")
    order = BatchOrder(len(positions), 256, 3)

    def loss_at(step: int) -> Tensor:
        if step == killed_at:
            raise Killed
        chosen = positions[order.indices(step)]
        batch = world().queries(chosen, max_history=SMALL.max_history)
        return model.loss(batch.to(device), world().labels(chosen).to(device))

    def evaluate(measured: nn.Module) -> Mapping[str, float]:
        return evaluated(measured, device, "validation").metrics

    result = train(
        model,
        loss_at,
        adamw(model, AdamWConfig(tables="adam" if backend == "triton" else "dense")),
        LoopConfig(
            num_steps=NUM_STEPS,
            schedule=ScheduleConfig(learning_rate=1e-2),
            deterministic=True,
            precision=precision,
            eval_every=40,
            checkpoint_every=25,
        ),
        evaluate=evaluate,
        checkpoint_dir=folder,
    )
    return model, result


def end_of_run(folder: Path) -> dict[str, bytes]:
    """What the last checkpoint holds: weights, optimizer, both generators, best weights."""
    newest = checkpoint_paths(folder)[-1]
    assert newest.name == f"step-{NUM_STEPS:09d}"
    return {path.name: path.read_bytes() for path in sorted(newest.glob("*.safetensors"))}


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_killed_run_resumes_to_the_same_bits(
    cuda: torch.device, tmp_path: Path, precision: str, backend: str
):
    """With ``triton``, tables move by rows and their state is part of the checkpoint."""
    how = {"precision": precision, "backend": backend}
    fit(cuda, tmp_path / "whole", **how)
    with pytest.raises(Killed):
        fit(cuda, tmp_path / "killed", killed_at=70, **how)
    fit(cuda, tmp_path / "killed", **how)
    whole, resumed = end_of_run(tmp_path / "whole"), end_of_run(tmp_path / "killed")
    names = ("best", "model", "optimizer", "random")
    assert set(whole) == {f"{name}.safetensors" for name in names}
    assert [name for name in whole if whole[name] != resumed.get(name)] == []


def test_a_model_learns_and_ranks_on_cuda_as_on_the_cpu(cuda: torch.device, tmp_path: Path):
    untrained = evaluated(model_on(cuda).eval(), cuda, "test").metrics["ndcg@10"]
    trained, result = fit(cuda, tmp_path / "checkpoints")
    assert result.bad_steps == 0
    # The last item alone decides the next, so a model that learned the cycle is right.
    assert evaluated(trained, cuda, "test").metrics["ndcg@10"] > max(0.8, 2 * untrained)
    trained.save(tmp_path / "model")
    on_cpu = TwoTower.load(tmp_path / "model", CATALOGUE)
    on_cuda = TwoTower.load(tmp_path / "model", CATALOGUE).to(cuda)
    on_cuda.eval()
    ours = on_cuda.score(queries("test").to(cuda)).cpu()
    torch.testing.assert_close(
        ours[:, 1:], on_cpu.score(queries("test"))[:, 1:], atol=SCORE_TOLERANCE, rtol=0
    )

    here, there = evaluated(on_cuda, cuda, "test"), evaluated(on_cpu, "cpu", "test")
    # Two items closer than the rounding may change places, which moves a rank by one.
    assert (here.ranks.values != there.ranks.values).float().mean() < 0.01
    for name, value in there.metrics.items():
        assert here.metrics[name] == pytest.approx(value, abs=2e-3), name
