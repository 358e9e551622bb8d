"""Hold our metrics to those of RecTools, ranx and RecNextEval on the lists of a backtest.

    python -m tests.benchmarks.peers.check_metrics FOLDER [--row peer.ease] [--write NAME]

Every judged step's lists and targets go to each package, in its own environment; ours are those of
``recsys.evaluation``. The result is the largest difference of a mean over the queries of a step.
RecNextEval also cuts the log at the steps' limits: its windows must hold the same events.

A package's environment needs no package of the project: what is compared goes through a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peers.folder import Backtest, Queries, Rows
from tests.benchmarks.peers.run import ENVIRONMENTS, ROOT

K = 10
METRICS = ("ndcg@10", "recall@10", "precision@10", "hit_rate@10", "mrr@10", "map@10")
PACKAGES = {
    "rectools": ("rectools", "RecTools 0.19.0"),
    "ranx": ("rectools", "ranx 0.3.21"),
    "recnexteval": ("recnexteval", "RecNextEval 1.1.1"),
}
"""Environment and version of each."""
Means = dict[str, float]


def ours(lists: Rows, queries: Queries) -> Means:
    """Measure with the project's code."""
    import torch

    from recsys.data.batch import Jagged
    from recsys.evaluation.ranking import list_ranks, per_user_metric

    targets = Jagged(torch.from_numpy(queries.targets), torch.from_numpy(queries.target_offsets))
    ranks = list_ranks(torch.from_numpy(lists), targets)
    return {name: float(per_user_metric(ranks, name).mean()) for name in METRICS}


def rectools_means(lists: Rows, queries: Queries) -> Means:
    """Measure with RecTools; its NDCG divides by what is achievable, its MAP by the targets."""
    import pandas as pd
    from rectools import Columns, metrics

    query, place = np.nonzero(lists[:, :K])
    shown = pd.DataFrame(
        {
            Columns.User: query,
            Columns.Item: lists[query, place],
            Columns.Rank: place + 1,
        }
    )
    wanted = pd.DataFrame({Columns.User: target_queries(queries), Columns.Item: queries.targets})
    found = {
        "ndcg@10": metrics.NDCG(k=K, divide_by_achievable=True),
        "recall@10": metrics.Recall(k=K),
        "precision@10": metrics.Precision(k=K),
        "hit_rate@10": metrics.HitRate(k=K),
        "mrr@10": metrics.MRR(k=K),
        "map@10": metrics.MAP(k=K),
    }
    return {name: float(metric.calc(shown, wanted)) for name, metric in found.items()}


def ranx_means(lists: Rows, queries: Queries) -> Means:
    """Measure with ranx."""
    from ranx import Qrels, Run, evaluate

    wanted: dict[str, dict[str, int]] = {}
    for query, item in zip(target_queries(queries), queries.targets, strict=True):
        wanted.setdefault(str(query), {})[str(item)] = 1
    shown = {
        str(query): {str(item): float(K - place) for place, item in enumerate(row) if item}
        for query, row in enumerate(lists[:, :K])
    }
    found = evaluate(Qrels(wanted), Run(shown), list(METRICS))
    return {name: float(found[name]) for name in METRICS}


def recnexteval_means(lists: Rows, queries: Queries) -> Means:
    """Measure with RecNextEval, once with ranks and once with scores for its predictions.

    Its algorithms predict scores, and version 1.1.1 passes these on to the metrics, which take
    them for ranks and never cut at k: ``MetricTopK.prepare_matrix`` is not called.
    """
    import scipy.sparse as sp
    from recnexteval.algorithms.utils import get_top_K_ranks
    from recnexteval.metrics import NDCGK, HitK, PrecisionK, RecallK

    shape = (len(queries), len(queries.candidates))
    query, place = np.nonzero(lists)
    scores = (lists.shape[1] - place).astype(np.float64)
    shown = sp.csr_matrix((scores, (query, lists[query, place])), shape=shape)
    ones = np.ones(len(queries.targets), np.int32)
    wanted = sp.csr_matrix((ones, (target_queries(queries), queries.targets)), shape=shape)
    found = {}
    kinds = {"ndcg": NDCGK, "recall": RecallK, "precision": PrecisionK, "hit_rate": HitK}
    for name, kind in kinds.items():
        for suffix, predicted in (("", get_top_K_ranks(shown, K)), (" of scores", shown)):
            metric = kind(np.arange(shape[0]), shape, K=K)
            metric.calculate(wanted, predicted)
            found[f"{name}@10{suffix}"] = float(metric.macro_result)
    return found


def recnexteval_windows(backtest: Backtest, steps: list[Queries]) -> int:
    """Count the steps whose known and coming events RecNextEval's splitter cuts otherwise."""
    import pandas as pd
    from recnexteval.matrix import InteractionMatrix
    from recnexteval.settings.splitters import TimestampSplitter

    table = pd.DataFrame(
        {"user": backtest.users, "item": backtest.item_rows, "time": backtest.times}
    )
    log = InteractionMatrix(table, item_ix="item", user_ix="user", timestamp_ix="time")
    different = 0
    for queries in steps:
        splitter = TimestampSplitter(queries.begin, t_upper=queries.end - queries.begin)
        past, coming = splitter.split(log)
        inside = (backtest.times >= queries.begin) & (backtest.times < queries.end)
        same = np.array_equal(past.copy_df()["iid"], backtest.known_before(queries.begin).item_rows)
        different += not (
            same and np.array_equal(coming.copy_df()["iid"], backtest.item_rows[inside])
        )
    return different


def target_queries(queries: Queries) -> Rows:
    """The query of each target, [M]."""
    return np.repeat(np.arange(len(queries)), np.diff(queries.target_offsets))


MEASURES: dict[str, Callable[[Rows, Queries], Means]] = {
    "ours": ours,
    "rectools": rectools_means,
    "ranx": ranx_means,
    "recnexteval": recnexteval_means,
}


def measured(package: str, backtest: Backtest, row: str) -> dict[str, Any]:
    """Measure every judged step with a package, in this process."""
    steps = {
        step: backtest.queries(step)
        for step in backtest.steps()
        if lists_path(backtest, step, row).exists()
    }
    found: dict[str, Any] = {"steps": {}}
    for step, queries in steps.items():
        with np.load(lists_path(backtest, step, row), allow_pickle=False) as file:
            lists = file["item_rows"].astype(np.int64)
        found["steps"][str(step)] = MEASURES[package](lists, queries)
    if package == "recnexteval":
        found["different_windows"] = recnexteval_windows(backtest, list(steps.values()))
    return found


def lists_path(backtest: Backtest, step: int, row: str) -> Path:
    """Where lists of any row lie, ours included."""
    return backtest.path / "steps" / str(step) / "lists" / f"{row}.npz"


def measured_elsewhere(package: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure with a package in its environment."""
    python = options.environments / PACKAGES[package][0] / "bin" / "python"
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "means.json"
        command = [str(python), "-m", __spec__.name, str(options.folder), "--row", options.row]
        subprocess.run(
            [*command, "--package", package, "--out", str(out)],
            check=True,
            # RecNextEval keeps its log there and is not imported without it.
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "STREAMSIGHT_ROOT": work},
        )
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def largest_differences(
    mine: dict[str, Any], theirs: dict[str, Any], suffix: str = ""
) -> dict[str, float]:
    """The largest absolute difference of a step's mean, by metric that both have."""
    names = [name for name in METRICS if name + suffix in next(iter(theirs["steps"].values()))]
    return {
        name: max(
            abs(means[name + suffix] - mine["steps"][step][name])
            for step, means in theirs["steps"].items()
        )
        for name in names
    }


def main() -> None:
    """Read the command line, compare and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--row", default="peer.ease")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--write", help="name of the result in results/peers")
    parser.add_argument("--package", choices=list(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    backtest = Backtest(options.folder)
    if options.package:
        found = measured(options.package, backtest, options.row)
        options.out.write_text(json.dumps(found), encoding="utf-8")
        return
    mine = measured("ours", backtest, options.row)
    differences: dict[str, dict[str, float]] = {}
    windows = None
    for package, (_, version) in PACKAGES.items():
        theirs = measured_elsewhere(package, options)
        differences[version] = largest_differences(mine, theirs)
        if package == "recnexteval":
            windows = theirs["different_windows"]
            differences[f"{version}, scores passed on"] = largest_differences(
                mine, theirs, " of scores"
            )
    report(differences, windows, len(mine["steps"]), options)


def report(
    differences: dict[str, dict[str, float]],
    windows: int | None,
    num_steps: int,
    options: argparse.Namespace,
) -> None:
    """Print the differences and write them where a name is given."""
    from tests.benchmarks.harness import Row, as_table, write_results

    rows = [
        Row(name=f"{version}: {name}", value=value, at_most=None if "scores" in version else 1e-6)
        for version, found in differences.items()
        for name, value in found.items()
    ]
    rows.append(Row(name="steps that RecNextEval cuts otherwise", value=windows or 0, at_most=0))
    if options.write:
        notes = (
            f"Largest difference of a step's mean to ours: lists of `{options.row}`, {num_steps} "
            f"steps of {options.folder.name}. RecNextEval 1.1.1's metrics agree when they are "
            "given ranks; what its evaluator passes them are scores, which they take for ranks and "
            "never cut at k."
        )
        write_results(options.write, rows, notes=notes)
    else:
        sys.stdout.write(as_table(rows) + "\n")


if __name__ == "__main__":
    main()
