"""The page Replay: which backtest is shown; its numbers are those of tests/pipelines/pages."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay import build, exports
from pipelines.pages.document import Chart
from tests.pipelines.dashboard.documents import block_of, control_of, dashboard, words
from tests.pipelines.pages.backtest.document import document


def put(folder: Path, made: dict[str, Any] | None) -> Path:
    (folder / "steps").mkdir(parents=True)
    (folder / "replay.json").write_text("{}", encoding="utf-8")
    if made is not None:
        (folder / "backtest.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


def test_what_is_not_finished_or_cannot_be_read_is_said(tmp_path):
    begun = put(tmp_path / "run" / "backtest", None)
    page = build(dashboard(tmp_path), Query.of())
    assert page.lead == "run/backtest has no results yet."
    assert "recsys backtest" in words(page)
    for text, said in (('{"metric": "ndcg@10"}', "another version"), ('{"metric"', "is no JSON")):
        (begun / "backtest.json").write_text(text, encoding="utf-8")
        assert said in words(build(dashboard(tmp_path), Query.of()))


def test_a_run_shows_its_own_backtest_and_another_can_be_chosen(tmp_path):
    put(tmp_path / "run" / "backtest", document())
    (tmp_path / "run" / "evaluate").mkdir()
    put(tmp_path / "other", {**document(), "data_set": "other"})
    context = dashboard(tmp_path)
    (run,) = context.stores.runs()
    page = build(context, Query.of(run=run.key))
    control = control_of(page, "replay")
    assert control.value == exports(context, Query.of(run=run.key))[0].text("replay")
    assert block_of(page, Chart, "policies").origins[0].run == run.key
    other = build(context, Query.of(replay=control.options[1].value))
    assert (page.title, other.title) == ("Backtest: a shop", "Backtest: other")
    with pytest.raises(NotFoundError, match="recsys backtest"):
        exports(context, Query.of(run="another"))
    with pytest.raises(NotFoundError, match="no backtest 'x'"):
        build(context, Query.of(replay="x"))
