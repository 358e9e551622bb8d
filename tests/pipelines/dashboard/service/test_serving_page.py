"""The page of serving: known numbers of a handmade log, and what it says while one is read."""

import threading
from pathlib import Path

import pytest

from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import request_log
from pipelines.dashboard.service.serving import build
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.documents import charts, dashboard, table, words
from tests.pipelines.dashboard.service.online_log import write_log

HOSTILE = "<img src=x onerror=alert(1)>"


def planted(number: int) -> dict[str, object]:
    """List 0 to 999, two days: times 1 to 100 ms, v2 from 600 on, 5% fallbacks, 3 late."""
    codes = [HOSTILE] if number % 10 == 0 else []
    codes += ["late_source"] if number in (100, 200, 300) else []
    return {
        "bundle": "v2" if number >= 600 else "v1",
        "degraded": codes,
        "fallback": "popularity" if number % 20 == 0 else None,
        "timings_ms": {"rank": 0.1, "total": float(1 + number % 100)},
        "items": [{"item_id": "i", "score": 1.0, "source": "ease"}] * 3
        + [{"item_id": "j", "score": 0.5, "source": "popularity"}],
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    (folder / "lock").touch()
    return folder


def test_known_numbers_of_a_log(workspace):
    # Lists 0 to 499 are of the first day.
    write_log(workspace / "online", 1_000, planted, every_ms=172_800)
    context = dashboard(workspace.parent)
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of())
    assert page.notices == []
    said = words(page)
    assert "1,000 lists from 2026-01-01 to 2026-01-02 UTC. On 2026-01-02: p95 9" in said
    assert "0.00% with late or failed parts, 5.00% made of popular items alone" in said
    assert "most of version v2" in said
    # Quantiles of 1 to 100, five times each.
    newest, oldest = table(page, "days").rows
    assert oldest[:2] == ("2026-01-01", 500)
    assert oldest[2:5] == pytest.approx((50.5, 95.05, 99.01), rel=0.05)
    assert oldest[5:] == (0.006, 0.05, "v1")
    assert (newest[1], newest[5:]) == (500, (0.0, 0.05, "v2"))
    assert table(page, "codes").rows == [(HOSTILE, 100, 0.1), ("late_source", 3, 0.003)]
    assert table(page, "sources").rows == [("ease", 3_000, 0.75), ("popularity", 1_000, 0.25)]
    latency = charts(page)["latency"]
    assert [row[:2] for row in latency.rows[:2]] == [
        ("2026-01-01T00:00:00Z", "p50"),
        ("2026-01-01T00:00:00Z", "p95"),
    ]


def test_while_the_log_is_read_that_is_said(workspace, monkeypatch):
    context = dashboard(workspace.parent)
    assert f"recsys serve {workspace}" in words(build(context, Query.of()))
    write_log(workspace / "online", 10, lambda _: {})
    gate, read = threading.Event(), SqliteStore.requests_between

    def waiting(self, *arguments):
        gate.wait(30)
        return read(self, *arguments)

    monkeypatch.setattr(SqliteStore, "requests_between", waiting)
    page = build(context, Query.of())
    assert page.notices == ["0 lists are read so far; more are being read"]
    assert page.refresh_seconds == 3.0
    gate.set()
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of())
    assert (page.notices, page.refresh_seconds) == ([], None)
    assert "time not kept" in words(page)
