"""Replay a log: the warm-up, the first judged step, then every policy side by side."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from recsys.evaluation.config import ReplayConfig
from recsys.fitting.blend import FittedBlend
from recsys.fitting.queries import GIVEN
from recsys.fitting.source_lists import SourceLists
from recsys.fitting.spec import device_named
from recsys.replay.experiment import PreparedData
from recsys.replay.fits import Replay, Say, run_policy, run_step
from recsys.replay.folder import (
    FIRST,
    KEPT,
    SERVED,
    WARM_UP,
    ReplayFolder,
    load_source,
    read_json,
    save_lists,
    write_json,
)

DESCRIPTION = "replay.json"
LEDGER = "ledger.jsonl"


def answered_by(policy: str, number: int) -> str:
    """Return the policy whose models answer a step; the first two steps are all policies'."""
    return {0: WARM_UP, 1: FIRST}.get(number, policy)


def source_lists(replay: Replay, number: int, policy: str) -> SourceLists:
    """Read what every model of a policy listed for a step."""
    folder, step = replay.folder, replay.steps[number]
    models = answered_by(policy, number)
    done = read_json(folder.done(number, models))
    lists = {name: load_source(folder.source(number, models, name)) for name in done["models"]}
    queries = replay.evaluation_queries(replay.queries(step))
    moment = done["known_at"]
    return SourceLists.of_queries(
        lists, queries, replay.item_counts(moment), replay.seed, replay.demand(moment)
    )


def fitted_on(replay: Replay, examples: SourceLists) -> FittedBlend:
    """Learn weights on the queries of a step that is over."""
    recipe = replay.prepared.recipe
    drawn = torch.arange(len(examples))
    if len(drawn) > recipe.blend.max_queries:
        drawn = torch.linspace(0, len(drawn) - 1, recipe.blend.max_queries).long()
    return recipe.fitted_blend(examples, drawn, device_named(replay.device))


def serve(replay: Replay, policy: str) -> None:
    """Write the served lists of every judged step."""
    folder, fitted = replay.folder, None
    before = source_lists(replay, 0, policy)
    for step in replay.steps[1:]:
        lists = source_lists(replay, step.number, policy)
        path = folder.lists(step.number, policy, SERVED)
        if not path.exists():
            if fitted is None or policy != "never":
                fitted = fitted_on(replay, before)
            top = fitted.blend.merged(lists, KEPT, device=device_named(replay.device))
            write_json(folder.step(step.number) / "blends" / f"{policy}.json", summary_of(fitted))
            save_lists(path, top.item_rows, 0.0, 0.0)
        before = lists


def summary_of(fitted: FittedBlend) -> dict[str, Any]:
    """Keep of a blend's document what a reader wants."""
    parts = ("served", "reason", "validation", "weights", "shares")
    return {name: fitted.document[name] for name in parts if name in fitted.document}


def describe_replay(
    prepared: PreparedData,
    config: ReplayConfig,
    folder: Path,
    *,
    seed: int = 0,
    device: str = "auto",
) -> Replay:
    """Describe a replay, and its folder."""
    replay = Replay(
        prepared=prepared,
        config=config,
        models=config.models or tuple(prepared.recipe.models),
        seed=seed,
        device=device,
        folder=ReplayFolder(folder),
    )
    document: dict[str, Any] = {
        "data_set": prepared.name,
        "data_digest": prepared.data_digest,
        "recipe": prepared.recipe.digest(),
        "order": GIVEN,
        "seed": seed,
        "config": asdict(config),
        "steps": [asdict(step) for step in replay.steps],
    }
    text = json.dumps(document, sort_keys=True)
    document["digest"] = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / DESCRIPTION
    if path.exists() and read_json(path)["digest"] != document["digest"]:
        raise ValueError(
            f"{folder} holds a replay of other data or settings ({path} has digest "
            f"{read_json(path)['digest']}, this one {document['digest']}); name another folder, "
            "or delete that one"
        )
    if not path.exists():
        # Steps are held out from whoever chooses settings, so each replay is a look at them.
        note_look(replay)
    write_json(path, document)
    return replay


def note_look(replay: Replay) -> None:
    """Record which steps are looked at, by which models."""
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": replay.prepared.name,
        "tie_order": GIVEN,
        "model": ", ".join(replay.models),
        "seed": replay.seed,
        "config": replay.prepared.recipe.digest(),
        "why": "recsys backtest",
    }
    path = replay.folder.path / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def run(replay: Replay, say: Say) -> None:
    """Make the fits, lists and blends that are missing."""
    for number, policy in ((0, WARM_UP), (1, FIRST)):
        if not replay.folder.is_done(number, policy):
            run_step(replay, policy, number)
            seconds = read_json(replay.folder.done(number, policy))["seconds"]
            say(f"{policy} models: {seconds:,.1f} s")
    for policy in replay.config.policies:
        run_policy(replay, policy, say)
        serve(replay, policy)
    shutil.rmtree(replay.folder.path / "checkpoints", ignore_errors=True)
