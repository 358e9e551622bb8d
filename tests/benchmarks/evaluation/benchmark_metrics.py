"""Time the full-catalogue evaluation and hold its metrics against ranx.

Random unit vectors of the size of Amazon Beauty: 22,363 users x 12,101 items, one target each,
nine excluded history items each, all metrics at 5, 10, 20, 50 and 100 and the per-user top 100.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from torch.nn.functional import normalize

from recsys.data.batch import Jagged, JaggedBatch
from recsys.evaluation.ranking import METRICS, RankingConfig, RankingResult, evaluate_ranking
from tests.benchmarks.harness import Row, command_line, write_results


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--users", type=int, default=22_363)
    parser.add_argument("--items", type=int, default=12_101)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def ranx_metrics(result: RankingResult, names: list[str]) -> tuple[dict[str, float], float]:
    """Score the same lists with ranx: (metrics, seconds without compiling).

    ranx orders equal scores arbitrarily, so ranks are handed over as strictly falling scores.
    """
    from ranx import Qrels, Run, evaluate

    falling = {place: float(-place) for place in range(result.top_k.item_rows.shape[1])}
    lists = result.top_k.item_rows.tolist()
    targets = result.targets.values.tolist()
    qrels = Qrels({f"u{u}": {f"i{item}": 1} for u, item in enumerate(targets)})
    run = Run(
        {
            f"u{u}": {f"i{item}": falling[place] for place, item in enumerate(rows) if item > 0}
            for u, rows in enumerate(lists)
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluate(qrels, run, names)
        begin = time.perf_counter()
        theirs = evaluate(qrels, run, names)
        return dict(theirs), time.perf_counter() - begin


def main() -> None:
    options = parsed_arguments()
    generator = torch.Generator().manual_seed(0)
    num_users, num_rows = options.users, options.items + 1
    users = normalize(torch.randn(num_users, options.dim, generator=generator))
    items = normalize(torch.randn(num_rows, options.dim, generator=generator))
    targets = Jagged.one_each(torch.randint(1, num_rows, (num_users,), generator=generator))
    history = torch.randint(1, num_rows, (num_users * 9,), generator=generator)
    exclude = Jagged(history, torch.arange(num_users + 1) * 9)
    config = RankingConfig()

    def evaluated() -> RankingResult:
        starts = range(0, num_users, options.batch_size)
        rows = torch.arange(num_users)
        return evaluate_ranking(
            lambda batch: users[batch["user"].values] @ items.T,
            (
                JaggedBatch({"user": Jagged.one_each(rows[i : i + options.batch_size])})
                for i in starts
            ),
            targets,
            config,
            exclude=exclude,
        )

    seconds = []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        result = evaluated()
        seconds.append(time.perf_counter() - begin)
    names = [f"{metric}@{k}" for metric in METRICS for k in config.ks]
    theirs, ranx_seconds = ranx_metrics(result, names)
    difference = float(max(abs(result.metrics[name] - theirs[name]) for name in names))

    best = min(seconds)
    rows = [
        Row(
            name=f"full evaluation, {num_users:,} users x {options.items:,} items",
            value=best,
            unit="s",
            goal="<= 10 s on 2 cores",
            at_most=10,
        ),
        Row(
            name="largest difference to ranx over all metrics",
            value=difference,
            peer="ranx",
            goal="<= 1e-6",
            at_most=1e-06,
        ),
        Row(name="ranx, metrics of ready-made lists only", value=ranx_seconds, unit="s"),
    ]
    notes = f"""
Best of {options.repeats} runs ({", ".join(f"{s:.2f}" for s in seconds)} s). Includes the scores
({options.dim}-wide products), exclusion of nine history items a user, exact ranks of the targets
in the whole catalogue, top {max(config.ks)} lists, and {len(names)} metrics.
"""
    write_results("metrics", rows, notes=notes)


if __name__ == "__main__":
    main()
