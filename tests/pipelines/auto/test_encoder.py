from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.auto import machine, rounds
from pipelines.auto.machine import Machine
from pipelines.auto.rounds import Automatic, Planned, planned_for
from pipelines.cli.automatic import plan_table
from pipelines.engine.console import log
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.presets.resolve import ConfigSources
from pipelines.stages.list import STAGES
from recsys.content.encoder import HashEncoder
from tests.recsys.content.openai_server import (
    OpenAIServer,
    Reply,
    Request,
    embeddings_reply,
    openai_server,
)

MACHINE = Machine(device="cpu", num_cpus=2, memory_bytes=16 * 2**30, flops=200e9)
WIDTH = 1_024
NUM_ITEMS, NUM_SOLD = 240, 200


@pytest.fixture
def wide() -> Iterator[OpenAIServer]:
    def embed(request: Request) -> Reply:
        return embeddings_reply(HashEncoder(WIDTH).encode(request["input"]).tolist())

    with openai_server(embed=embed) as server:
        yield server


@pytest.fixture
def sources(tmp_path: Path, wide: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> ConfigSources:
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))
    # However busy this machine is, the plan is that of a quiet one.
    monkeypatch.setattr(rounds, "this_machine", lambda device: MACHINE)
    monkeypatch.setattr(machine, "ENOUGH_SECONDS", float("inf"))
    rng = np.random.default_rng(0)
    events = [
        f"u{user},i{item},{place}"
        for user in range(60)
        for place, item in enumerate(rng.permutation(NUM_SOLD)[:12])
    ]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id,sequence_index", *events]))
    titles = [f"i{item},red soap number {item}" for item in range(NUM_ITEMS)]
    (tmp_path / "items.csv").write_text("\n".join(["item_id,title", *titles]))
    (tmp_path / "shop.toml").write_text(
        f'preset = "auto"\n[data]\nevents = "events.csv"\nitems = "items.csv"\n'
        f'[content]\nencoder = "endpoint"\n[content.endpoint]\nmodel = "wide"\n'
        f'base_url = "{wide.base_url}"\ndim = {WIDTH}\n'
    )
    return ConfigSources(path=tmp_path / "shop.toml", workspace=tmp_path / "run")


def test_the_encoder_that_is_set_is_timed_and_planned(sources, wide):
    config = sources.config()
    run_stages(pick_stages(STAGES, ["build_features"], None), config)
    planned = planned_for(sources, config, lambda: 600.0)
    sent = [text for request in wide.requests for text in request["input"]]
    assert len(sent) == len(set(sent)) == 200

    assert "events have no times" in planned.shape.judged_by
    # Items of the catalogue alone take part, and the plan says so.
    assert planned.shape.num_items == NUM_ITEMS
    assert any(line.startswith(f"{planned.shape.num_cold} items") for line in planned.plan.notes)
    with log.capture() as shown:
        log.print(plan_table(planned))
    assert "endpoint" in shown.get()
    assert "1024" in shown.get()
    first, best = (
        Automatic(sources, config, 0.0, print).round_config(one) for one in planned.plan.rounds
    )
    assert (first.content.encoder, best.content.encoder) == ("none", "endpoint")


def test_another_budget_continues_from_what_is_served(sources):
    def with_budget(budget: str) -> Planned:
        own = ConfigSources(
            path=sources.path, workspace=sources.workspace, values={"auto": {"budget": budget}}
        )
        return planned_for(own, own.config(), lambda: 600.0)

    run_stages(pick_stages(STAGES, ["build_features"], None), sources.config())
    short = with_budget("5m")
    served = replace(short.plan.rounds[-1], name="served")
    short.plan = replace(short.plan, rounds=(*short.plan.rounds, served))
    tried = {"name": "passes", "begun": True}
    short.finished, short.trials = 3, [tried, {"name": "ranker", "begun": False}]
    short.save(sources.config(), 2)

    # The whole plan is known by its budget; by another one, what was done and tried.
    assert with_budget("5m").trials == short.trials
    longer = with_budget("10m")
    assert [one.name for one in longer.plan.rounds] == [one.name for one in short.plan.rounds]
    assert (longer.finished, longer.trials, longer.stopped) == (3, [tried], "")

    # What follows a first bundle alone is planned again.
    short.finished = 1
    short.save(sources.config(), 0)
    again = with_budget("1h")
    assert again.plan.rounds[0] == short.plan.rounds[0]
    assert again.finished == 1
    assert len(again.plan.rounds) > 1
    assert "served" not in [one.name for one in again.plan.rounds]
