"""What a blend gains that reads how much each item was wanted lately.

    python -m tests.benchmarks.evaluation.benchmark_recent_demand replay ARRAYS --out FOLDER \
        --models popularity item_to_item ease content sequence --steps 15
    python -m tests.benchmarks.evaluation.benchmark_recent_demand moment ARRAYS --out FOLDER
    python -m tests.benchmarks.evaluation.benchmark_recent_demand write FOLDER ... --device NAME

ARRAYS are of ``--prepare`` of a card in benchmarks/reproduction. ``replay``
fits every model before each step and learns the blend on the step before, with demand and without.
``moment`` fits on what was before a moment, learns on the validation part, refits with it, and is
judged on everything after. Both need torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import recsys.replay.run as replay_run
from recsys.fitting.spec import device_named
from recsys.replay import experiment
from recsys.replay.run import replay_of
from recsys.replay.steps import ReplayConfig
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.recipes.fit import Experiment
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.recipe import config_of
from tests.benchmarks.recipes.run import RunSettings, metrics_of
from tests.benchmarks.reproduction.ranking_run import REFIT, RankingRun, chosen_steps, run_once

SOURCES = ("popularity", "item_to_item", "ease", "content", "sequence")
WHY = "what recent demand adds to the blend"
METRICS = ("recall@10", "ndcg@10")


def with_demand(prepared: Any, *, on: bool) -> Any:
    recipe = prepared.recipe
    blend = replace(recipe.blend, recent_demand=on)
    return replace(prepared, recipe=replace(recipe, blend=blend))


def mean(values: Tensor) -> float:
    return float(values.nanmean())


def replayed(options: argparse.Namespace) -> None:
    """Replay a log; print and write the blend's metric of each step, both ways."""
    prepared = Prepared.load(options.arrays)
    path = options.arrays / "backtest.json"
    config = config_of(ReplayConfig, json.loads(path.read_text()) if path.exists() else {})
    models = {"models": options.models, "policies": ["full"], "num_steps": options.steps}
    config = config_of(ReplayConfig, {**asdict(config), **models})
    device = options.device
    log = experiment.Prepared(
        name=prepared.name,
        data_digest=prepared.data_digest,
        recipe=prepared.recipe.replayed(options.models),
        inputs=prepared.inputs(next(iter(prepared.orders))),
    )
    replay = replay_of(log, config, options.out / "replay", seed=options.seed, device=device)
    # Lists with their scores are read below, and would be removed once they are blended.
    replay_run.serve = lambda replay, policy: None
    replay_run.run(replay, lambda line: print(line, flush=True))
    before = replay_run.source_lists(replay, 0, "full")
    for step in replay.steps[1:]:
        lists = replay_run.source_lists(replay, step.number, "full")
        values = {}
        for on in (False, True):
            fitted = replay_run.fitted_on(replace(replay, prepared=with_demand(log, on=on)), before)
            values[on] = fitted.blend.measured(
                lists, prepared.recipe.metric, device=device_named(device)
            )
        gain = values[True] - values[False]
        gain = gain[~gain.isnan()]
        line = {
            "step": step.number,
            "off": mean(values[False]),
            "on": mean(values[True]),
            "diff": float(gain.mean()),
            "se": float(gain.std() / len(gain) ** 0.5),
        }
        append(options, {"part": "replay", "models": options.models, **line})
        before = lists


def judged_after_a_moment(options: argparse.Namespace) -> None:
    """Refit once and judge what came after, both ways."""
    prepared = Prepared.load(options.arrays)
    rows = (*SOURCES, "blend_fast", "sequence_refit", "blend_refit")
    prepared = replace(prepared, recipe=replace(prepared.recipe, rows=rows, sources=SOURCES))
    order = next(iter(prepared.orders))
    settings = RunSettings(order=order, seed=options.seed, device=options.device, why=WHY)
    result = run_once(prepared, options.out, settings)
    folder = options.out / settings.name
    found = {
        "on" if on else "off": refitted(with_demand(prepared, on=on), folder, settings)
        for on in (False, True)
    }
    refit = {name: result["rows"]["sequence_refit"]["test"][name] for name in METRICS}
    append(options, {"part": "moment", "seed": options.seed, "sequence": refit, **found})


def refitted(prepared: Prepared, folder: Path, settings: RunSettings) -> dict[str, Any]:
    """Measure the blend of the refitted models on test."""
    experiment = Experiment(
        prepared=prepared,
        inputs=prepared.inputs(settings.order),
        seed=settings.seed,
        device=device_named(settings.device),
    )
    parts = prepared.recipe.parts("blend_refit")
    blend, _ = RankingRun(experiment, folder, settings).fitted_blend(parts)
    steps = chosen_steps(folder, prepared.recipe.refitted())
    later = RankingRun(replace(experiment, chosen_steps=steps), folder, settings)
    ranked = later.merged(blend, later.lists(parts, "test", REFIT))
    metrics = metrics_of(ranked.ranks, experiment.queries("test").targets())
    return {name: metrics[name] for name in METRICS}


def append(options: argparse.Namespace, line: Mapping[str, Any]) -> None:
    document = {"data": Prepared.load(options.arrays).name, **line}
    print(json.dumps(document), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "lines.jsonl").open("a") as file:
        file.write(json.dumps(document) + "\n")


def rows_of(lines: list[dict[str, Any]]) -> list[Row]:
    """Compare both ways: means of steps, means of seeds."""
    rows = []
    for data in dict.fromkeys(one["data"] for one in lines):
        steps = [one for one in lines if one["data"] == data and one["part"] == "replay"]
        if steps:
            off, on = (sum(one[way] for one in steps) / len(steps) for way in ("off", "on"))
            error = sum(one["se"] ** 2 for one in steps) ** 0.5 / len(steps)
            up = sum(one["diff"] > 0 for one in steps)
            about = f"replay, upwards on {up} of {len(steps)} steps, difference +-{error:.4f}"
            rows.append(compared(f"{data}, {about}: ndcg@10", off, on))
        seeds = [one for one in lines if one["data"] == data and one["part"] == "moment"]
        for name in METRICS if seeds else ():
            off, on, alone = (
                sum(one[way][name] for one in seeds) / len(seeds)
                for way in ("off", "on", "sequence")
            )
            case = f"{data}, after a moment, one refit, {len(seeds)} seeds"
            rows.append(compared(f"{case}: {name}", off, on))
            rows.append(Row(f"{case}: {name} of the sequence model", round(alone, 4)))
    return rows


def compared(name: str, off: float, on: float) -> Row:
    return Row(name=name, value=round(on, 4), peer=f"without {off:.4f}", ratio=on / off)


def case_of(row: Row) -> list[str]:
    """Data set and part of a row, whatever was measured of it."""
    return row.name.split(",")[:2]


def write(options: argparse.Namespace) -> None:
    texts = [(folder / "lines.jsonl").read_text() for folder in options.folders]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    rows = rows_of(lines)
    if options.kept:
        earlier = [Row(**row) for row in json.loads(options.kept.read_text())["rows"]]
        rows = [one for one in earlier if case_of(one) not in [case_of(row) for row in rows]] + rows
    write_results("recent_demand", rows, notes=options.notes, device=options.device)


def main() -> None:
    parser = command_line(__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("replay", "moment"):
        part = parts.add_parser(name)
        part.add_argument("arrays", type=Path)
        part.add_argument("--out", type=Path, required=True)
        part.add_argument("--seed", type=int, default=0)
        part.add_argument("--device", default="auto")
        part.add_argument("--models", nargs="+", default=list(SOURCES))
        part.add_argument("--steps", type=int, default=15)
    result = parts.add_parser("write")
    result.add_argument("folders", type=Path, nargs="+")
    result.add_argument("--device")
    result.add_argument("--kept", type=Path, help="page in JSON whose other cases stay")
    result.add_argument("--notes", default="")
    options = parser.parse_args()
    {"replay": replayed, "moment": judged_after_a_moment, "write": write}[options.part](options)


if __name__ == "__main__":
    main()
