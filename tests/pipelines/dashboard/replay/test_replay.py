"""The page Replay: which backtest is shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay import backtests, build, exports
from pipelines.pages.document import Chart
from tests.pipelines.dashboard.documents import block_of, control_of, dashboard, words
from tests.pipelines.pages.backtest.document import document


def put(folder: Path, made: dict[str, Any] | None) -> Path:
    (folder / "steps").mkdir(parents=True)
    (folder / "replay.json").write_text("{}", encoding="utf-8")
    if made is not None:
        (folder / "backtest.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


def test_what_is_not_finished_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "recsys backtest" in words(build(dashboard(tmp_path), Query.of()))
    begun = put(tmp_path / "run" / "backtest", None)
    page = build(dashboard(tmp_path), Query.of())
    assert page.lead == "run/backtest has no results yet."
    assert "recsys backtest" in words(page)
    for text, said in (('{"metric": "ndcg@10"}', "another version"), ('{"metric"', "is no JSON")):
        (begun / "backtest.json").write_text(text, encoding="utf-8")
        assert said in words(build(dashboard(tmp_path), Query.of()))
    put(tmp_path / "whole", document())
    assert "4 steps" in build(dashboard(tmp_path), Query.of()).lead


def test_a_backtest_can_be_chosen_and_one_that_is_gone_is_not_found(tmp_path: Path) -> None:
    other = {**document(), "data_set": "other"}
    keys = []
    for name, made in (("first", document()), ("second", other)):
        put(tmp_path / name, made)
        keys += [one.key for one in backtests(dashboard(tmp_path)) if one.name == name]
    context = dashboard(tmp_path)
    titles = [build(context, Query.of(replay=key)).title for key in keys]
    assert titles == ["Backtest: a shop", "Backtest: other"]
    with pytest.raises(NotFoundError, match="no backtest 'x'"):
        build(context, Query.of(replay="x"))


def test_a_run_shows_its_own_backtest(tmp_path: Path) -> None:
    put(tmp_path / "run" / "backtest", document())
    (tmp_path / "run" / "evaluate").mkdir()
    put(tmp_path / "other", document())
    context = dashboard(tmp_path)
    (run,) = context.stores.runs()
    page = build(context, Query.of(run=run.key))
    assert control_of(page, "replay").value == (
        exports(context, Query.of(run=run.key))[0].text("replay")
    )
    assert block_of(page, Chart, "policies").origins[0].run == run.key
    with pytest.raises(NotFoundError, match="recsys backtest"):
        exports(context, Query.of(run="another"))
