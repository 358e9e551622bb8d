"""Replay prepared arrays: ``python -m recsys.replay ARRAYS --out FOLDER``.

Needs torch, numpy and safetensors alone, so it runs where the pipelines' packages are not; the
folder it writes is then read by ``recsys backtest``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from recsys.replay.fits import REPLAYED
from recsys.replay.run import replay_of, run
from recsys.replay.steps import POLICIES, ReplayConfig
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.recipe import config_of, with_changes

CONFIG = "backtest.json"
"""Beside the arrays: the settings that they were prepared with."""


def parsed_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="recsys.replay", description=__doc__)
    parser.add_argument("folder", type=Path, help="arrays, from recsys backtest --prepare")
    parser.add_argument("--out", type=Path, required=True, help="folder of the replay")
    parser.add_argument("--order", help="of tied times; the first by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--models", nargs="*", choices=REPLAYED)
    parser.add_argument("--policies", nargs="*", choices=tuple(POLICIES))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="of the recipe")
    parser.add_argument(
        "--replay", nargs="*", default=[], metavar="KEY=JSON", help="of the replay's settings"
    )
    return parser.parse_args(arguments)


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, or go on with a replay that was killed."""
    options = parsed_arguments(arguments)
    prepared = Prepared.load(options.folder)
    prepared = replace(prepared, recipe=with_changes(prepared.recipe, options.set))
    path = options.folder / CONFIG
    config = ReplayConfig()
    if path.exists():
        config = config_of(ReplayConfig, json.loads(path.read_text(encoding="utf-8")))
    changes = {
        key: json.loads(value) for key, _, value in (one.partition("=") for one in options.replay)
    }
    if options.models:
        changes["models"] = options.models
    if options.policies:
        changes["policies"] = options.policies
    config = config_of(ReplayConfig, {**asdict(config), **changes})
    replay = replay_of(
        prepared,
        config,
        options.out,
        order=options.order or next(iter(prepared.orders)),
        seed=options.seed,
        device=options.device,
    )
    run(replay, say)


if __name__ == "__main__":
    main()
