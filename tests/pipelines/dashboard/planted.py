"""Workspaces whose better one is known: a made log, and ranks drawn with planted differences.

Each held-out item has a latent difficulty by its popularity and its user's activity, and a noise
that all models share; a model adds noise of its own and the differences planted in it. The rank is
the exponential of what comes out. Lists are drawn by popularity, with the held-out item at its
rank. The files are those of build_features and evaluate, their analysis by the stage's own code.

Axes: U users, N items, E events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.config.run import EvaluationConfig
from pipelines.engine.artifacts import Manifest, digest_of_json, to_json
from pipelines.evaluation.analyse import Background, analyse_split
from pipelines.evaluation.analysis import Analysis, per_user_table
from pipelines.inputs.tensors import read_inputs
from recsys.data.batch import Jagged
from recsys.data.durable import digest_of_file
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingConfig, RankingResult, mean_metrics

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
CATEGORIES = ("", "books", "games", "garden", "music", "shoes", "tools")
DOMAINS = ("home", "outlet")
START = 1_700_000_000
DAY = 86_400
LISTED = 20
CHUNK = 50_000
"""Users whose lists are drawn together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """A log with users, items and their held-out events; rows start at 1."""

    seed: int
    lengths: Rows
    """Events of each user, [U]; at least 3."""
    popularity: Floats
    """Chance of each item, [N]."""
    categories: Rows
    """Row of each item's category, [N]."""
    domains: Rows
    """[N]."""
    item_rows: Rows
    """[E]."""
    times: Rows
    """[E]."""

    @property
    def offsets(self) -> Rows:
        """[U + 2]: row 0 is nobody."""
        return np.concatenate([[0, 0], np.cumsum(self.lengths)])

    @property
    def targets(self) -> Rows:
        """Item row of each user's last event, [U]."""
        return self.item_rows[self.offsets[2:] - 1]

    @property
    def new_users(self) -> NDArray[np.bool_]:
        """Users with at most 4 training events, [U]."""
        return self.lengths - 2 <= 4

    @property
    def heavy_users(self) -> NDArray[np.bool_]:
        """The most active fifth of the others, [U]."""
        others = np.sort(self.lengths[~self.new_users])[::-1]
        return self.lengths >= others[max(1, round(len(others) * 0.2)) - 1]

    def target_category(self, name: str) -> NDArray[np.bool_]:
        return self.categories[self.targets - 1] == CATEGORIES.index(name)

    def target_domain(self, name: str) -> NDArray[np.bool_]:
        return self.domains[self.targets - 1] == DOMAINS.index(name)

    @property
    def target_share(self) -> Floats:
        """Share of the events that are of items less popular than the held-out one, [U]."""
        counts = np.bincount(self.item_rows, minlength=len(self.popularity) + 1)
        below = np.array([counts[counts < count].sum() for count in counts])
        found: Floats = below[self.targets] / counts.sum()
        return found


def world(seed: int, *, num_users: int = 3000, num_items: int = 300) -> World:
    """Draw a log."""
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(1 / np.arange(1, num_items + 1) ** 0.8)
    lengths = 3 + rng.geometric(0.09, num_users)
    lengths[: num_users // 5] = rng.integers(3, 7, num_users // 5)
    chance = popularity / popularity.sum()
    owners = np.repeat(np.arange(num_users), lengths)
    times = START + rng.integers(0, 90 * DAY, lengths.sum())
    return World(
        seed=seed,
        lengths=lengths,
        popularity=chance,
        categories=rng.integers(1, len(CATEGORIES), num_items),
        domains=(rng.random(num_items) < 0.3).astype(np.int64),
        item_rows=1 + rng.choice(num_items, lengths.sum(), p=chance),
        times=times[np.lexsort((times, owners))],
    )


def write_features(known: World, folder: Path) -> None:
    """Write what build_features writes and others read."""
    num_items, num_users = len(known.popularity), len(known.lengths)
    sequences = folder / "sequences" / "given"
    for part in (sequences, folder / "vocabularies", folder / "item_categories"):
        part.mkdir(parents=True)
    ends = known.offsets[1:]
    arrays = {
        "item_rows": known.item_rows,
        "offsets": known.offsets,
        "times": known.times,
        "train_end": np.maximum(ends - 2, 0),
        "validation_end": np.maximum(ends - 1, 0),
    }
    for name, values in arrays.items():
        np.save(sequences / f"{name}.npy", values)
    item_rows = np.arange(1, num_items + 1)
    item_ids = [f"item-{row}" for row in item_rows]
    titles = [f"<b>Title</b> {row} \U0001f600 \u05d0" for row in item_rows]
    pl.DataFrame(
        {
            "item_row": item_rows,
            "item_id": item_ids,
            "title": titles,
            "categories": [[CATEGORIES[row]] for row in known.categories],
            "domain": [DOMAINS[row] for row in known.domains],
            "display_text": titles,
        }
    ).write_parquet(folder / "items.parquet")
    vocabularies = {
        "users": [f"user-{row}" for row in range(1, num_users + 1)],
        "items": item_ids,
        "categories": CATEGORIES[1:],
    }
    for name, ids in vocabularies.items():
        table = pl.DataFrame({"row": np.arange(1, len(ids) + 1), "id": ids})
        table.write_parquet(folder / "vocabularies" / f"{name}.parquet")
    categories = folder / "item_categories"
    np.save(categories / "values.npy", known.categories)
    np.save(categories / "offsets.npy", np.concatenate([[0], np.arange(num_items + 1)]))
    sizes = {
        "num_item_rows": num_items + 1,
        "num_user_rows": num_users + 1,
        "num_categories": len(CATEGORIES),
        "user_features": [],
        "context_features": [],
    }
    (folder / "features.json").write_text(to_json(sizes))
    write_manifest(folder, {"events": digest_of_json(known.seed)})


@dataclass(frozen=True, kw_only=True)
class Model:
    """How a model ranks in a world."""

    seed: int
    shift: Callable[[World], Floats] | None = None
    """Added to each query's log-rank, [U]; above 0 is worse."""
    moved: Callable[[Floats], Floats] | None = None
    """Replaces log-ranks, [U]."""
    strength: float = 1.0
    """Share of what is planted by `shift` and `moved` that is there."""
    own_noise: float = 0.5
    spread: float = 1.0
    """Of the lists over the catalogue; near 0 all lists are the same."""
    seconds: float = 600.0
    """Of its training."""


def log_ranks(known: World, model: Model) -> Floats:
    """Draw the log-rank of each held-out item, [U]."""
    shared = np.random.default_rng([known.seed, 1]).normal(0, 1.3, len(known.lengths))
    own = np.random.default_rng([known.seed, 2, model.seed]).normal(0, 1, len(known.lengths))
    drawn = 4.4 - 2.2 * known.target_share + shared + model.own_noise * own
    if model.shift is not None:
        drawn = drawn + model.strength * model.shift(known)
    if model.moved is not None:
        drawn = drawn + model.strength * (model.moved(drawn) - drawn)
    return drawn


def result_of(known: World, model: Model, config: RankingConfig) -> RankingResult:
    """Make what evaluating the model would have found."""
    num_users, num_items = len(known.lengths), len(known.popularity)
    exact = np.clip(np.ceil(np.exp(log_ranks(known, model))), 1, num_items - 1).astype(np.int64)
    rng = np.random.default_rng([known.seed, 3, model.seed])
    lists = np.empty((num_users, LISTED), np.int64)
    for start in range(0, num_users, CHUNK):
        users = np.arange(start, min(start + CHUNK, num_users))
        taste = np.log(known.popularity) + model.spread * rng.gumbel(size=(len(users), num_items))
        taste[np.arange(len(users)), known.targets[users] - 1] = -np.inf
        best = np.argpartition(-taste, LISTED, axis=1)[:, :LISTED]
        order = np.argsort(-np.take_along_axis(taste, best, axis=1), axis=1)
        lists[users] = 1 + np.take_along_axis(best, order, axis=1)
    found = np.flatnonzero(exact <= LISTED)
    lists[found, exact[found] - 1] = known.targets[found]
    ranks = Jagged.one_each(torch.from_numpy(exact))
    return RankingResult(
        metrics=mean_metrics(ranks, config),
        num_users=num_users,
        user_rows=torch.arange(1, num_users + 1),
        targets=Jagged.one_each(torch.from_numpy(known.targets)),
        ranks=ranks,
        top_k=TopK(torch.zeros(lists.shape), torch.from_numpy(lists)),
    )


def write_workspace(
    path: Path, known: World, models: Mapping[str, Model], *, features: Path | None = None
) -> Path:
    """Write a workspace whose test split is measured.

    Args:
        features: A folder with the world's features to link to.
    """
    own = path / "build_features"
    if features is None:
        write_features(known, own)
    else:
        path.mkdir(parents=True)
        own.symlink_to(features, target_is_directory=True)
    evaluate = path / "evaluate"
    evaluate.mkdir()
    config = EvaluationConfig()
    results = {name: result_of(known, model, config) for name, model in models.items()}
    table = per_user_table(results, LISTED, digest_of_json(str(path)))
    table.write_parquet(evaluate / "per_user_given_test.parquet")
    metrics = {name: dict(result.metrics) for name, result in results.items()}
    (evaluate / "metrics.json").write_text(to_json({"given": {"test": metrics}}))
    inputs = read_inputs(own, None)
    manifest = Manifest.load(own)
    assert manifest is not None
    analysed = analyse_split(
        results, Background.of(inputs, own), config, baseline=next(iter(models))
    )
    Analysis(
        orders={"given": {"test": analysed}},
        data_digest=manifest.output,
        protocol="leave_one_out, full catalogue, all users, lists without the user's history",
        primary_metric="ndcg@10",
    ).save(evaluate)
    seconds = {"evaluate": 10.0, "train_sequence": max(model.seconds for model in models.values())}
    for stage, duration in seconds.items():
        (path / stage).mkdir(exist_ok=True)
        write_manifest(path / stage, {"build_features": manifest.output}, seconds=duration)
    return path


def write_manifest(folder: Path, inputs: Mapping[str, str], *, seconds: float = 1.0) -> None:
    """Complete a stage's folder."""
    files = {
        str(path.relative_to(folder)): digest_of_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = Manifest(
        stage=folder.name, inputs=inputs, config={}, versions={}, rows={}, files=files
    )
    run = {
        "host": "planted",
        "peak_memory_bytes": 1 << 30,
        "seconds": seconds,
        "started": datetime.fromtimestamp(START, UTC).isoformat(timespec="seconds"),
    }
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "manifest.json").write_text(manifest.to_json())
