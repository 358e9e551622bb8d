"""Measure the models of weights between items beside EASE and BM25 written in numpy and scipy.

Each set's events before the last two of a user are fitted on, the second last are ranked over the
full catalogue with the history left out (validation; no look at test). Time is of one fit with its
choice of settings on validation; the peers' one setting is chosen there too, and the time of their
fits is added up alike. The peers are a few lines each: the Gram matrix of a sparse binary matrix,
numpy's inverse, dense scores.

    RECSYS_DATA_MIRROR=/data python -m tests.benchmarks.retrieval.benchmark_linear_models
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.presets import PRESETS
from pipelines.presets.resolve import with_dataset
from pipelines.stages.list import STAGES
from recsys.data.batch import JaggedBatch
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import CHOICE_USERS, fit_ease, fit_item_knn
from recsys.fitting.queries import EvaluationQueries, measure
from recsys.models.item_weights.ease import EaseWeightsConfig
from recsys.models.item_weights.item_knn import ItemKnnConfig
from recsys.retrieval.sources import ScoredSource
from tests.benchmarks.harness import Row, command_line, write_results

SETS = ("movielens_100k", "amazon_beauty")
METRIC = "ndcg@10"
MAX_USERS = 2_000
"""Users that are measured, drawn once: the peers' dense scores take their time."""
Matrix = NDArray[np.float32]
Score = Callable[[JaggedBatch], Tensor]
Judge = Callable[[Score], float]


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--workspace", type=Path, default=Path("runs/linear-models"))
    return parser.parse_args()


def inputs_of(name: str, workspace: Path) -> tuple[ModelInputs, EvaluationQueries]:
    """Prepare a preset's events, and its validation queries."""
    preset = PRESETS[name]()
    splits = replace(preset.splits, tie_orders=("given",))
    config = with_dataset(replace(preset, workspace=workspace / name, splits=splits))
    run_stages(pick_stages(STAGES, ["build_features"], None), config)
    inputs = read_inputs(workspace / name / "build_features", None, "given")
    queries = EvaluationQueries.of(inputs, "validation", retrieval_settings(config))
    return inputs, queries.sample(MAX_USERS, 0)


def taken(inputs: ModelInputs) -> sparse.csr_matrix:
    """Mark which items each user has before the held-out events, [U, N] sparse."""
    sequences = inputs.sequences
    places = sequences.positions_before(sequences.train_end)
    cells = np.stack([sequences.users_of(places), sequences.item_rows[places]])
    shape = (sequences.num_user_rows, inputs.sizes.num_item_rows)
    users, items = np.unique(cells, axis=1)
    return sparse.csr_matrix((np.ones(len(users), np.float32), (users, items)), shape=shape)


def by_histories(weights: Matrix) -> Score:
    """Score by the distinct items of the history and dense weights."""
    table = torch.from_numpy(weights)

    def score(queries: JaggedBatch) -> Tensor:
        history = queries["history"]
        own = torch.zeros(queries.batch_size, len(table))
        own[history.segments(), history.values] = 1
        return own @ table

    return score


def plain_ease(matrix: sparse.csr_matrix, l2: float) -> Score:
    gram = (matrix.T @ matrix).toarray()
    gram[np.diag_indices_from(gram)] += l2
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    weights[np.diag_indices_from(weights)] = 0
    return by_histories(weights.astype(np.float32))


def plain_bm25(matrix: sparse.csr_matrix, length_weight: float) -> Score:
    count, length = np.asarray(matrix.sum(0)).ravel(), np.asarray(matrix.sum(1)).ravel()
    idf = np.log((matrix.shape[0] - count + 0.5) / (count + 0.5) + 1)
    scaled = sparse.diags(1 / (1 + length_weight * length / length.mean())) @ matrix
    weights = idf[:, None] * (scaled.T @ matrix).toarray()
    weights /= np.maximum(1, np.sqrt(count)[:, None] * np.sqrt(count)[None])
    weights[np.diag_indices_from(weights)] = 0
    return by_histories(weights.astype(np.float32))


def tried(fit: Callable[[float], Score], settings: tuple[float, ...]) -> Callable[[Judge], Score]:
    """Fit with each setting and keep the best on validation."""

    def best(judge: Judge) -> Score:
        scores = [fit(setting) for setting in settings]
        return max(scores, key=judge)

    return best


def measured(name: str, workspace: Path) -> list[Row]:
    """Fit every model of one set; its time and its metric on validation."""
    inputs, queries = inputs_of(name, workspace)
    few, ranking = queries.sample(CHOICE_USERS, 0), RankingConfig(ks=(10,))
    matrix = taken(inputs)

    def judge(score: Score) -> float:
        return measure(ScoredSource(score), few, ranking)[METRIC]

    models: dict[str, Callable[[], Score]] = {
        "EASE": lambda: fit_ease(inputs, EaseWeightsConfig(), "train", few).score,
        "EASE, half of the items exact": lambda: (
            fit_ease(
                inputs, EaseWeightsConfig(exact_items=matrix.shape[1] // 2), "train", few
            ).score
        ),
        "item-kNN": lambda: fit_item_knn(inputs, ItemKnnConfig(), "train", few).score,
        "plain EASE": lambda: tried(lambda l2: plain_ease(matrix, l2), (100.0, 400.0))(judge),
        "plain BM25 item-kNN": lambda: tried(lambda b: plain_bm25(matrix, b), (0.0, 0.7))(judge),
    }
    peers = {"EASE": "plain EASE", "item-kNN": "plain BM25 item-kNN"}
    found: dict[str, tuple[float, float]] = {}
    for model, fit in models.items():
        begin = time.perf_counter()
        score = fit()
        seconds = time.perf_counter() - begin
        found[model] = (seconds, measure(ScoredSource(score), queries, ranking)[METRIC])
    rows = []
    for model, (seconds, quality) in found.items():
        if model in peers.values():
            continue
        case, peer = f"{name}, {model}", peers.get(model)
        beside, peer_quality = found[peer] if peer else (None, None)
        named = f"{peer}: {peer_quality:.4f}" if peer else None
        ratio = quality / peer_quality if peer_quality else None
        rows.append(Row(name=f"{case}: {METRIC}", value=quality, peer=named, ratio=ratio))
        label = f"{case}: fit"
        rows.append(Row(name=label, value=seconds, unit="s", peer=peer, peer_value=beside))
    return rows


def main() -> None:
    arguments = parsed_arguments()
    rows = [row for name in arguments.sets for row in measured(name, arguments.workspace)]
    write_results("linear_models", rows)


if __name__ == "__main__":
    main()
