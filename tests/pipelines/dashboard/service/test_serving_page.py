"""The page of serving: known numbers of a handmade log, documents of a workspace."""

import json
import threading
from pathlib import Path

import pytest

from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.service.request_log import request_log
from pipelines.dashboard.service.serving import build
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.documents import charts, dashboard, sections, table, tiles
from tests.pipelines.dashboard.service.online_log import write_log

HOSTILE = "<img src=x onerror=alert(1)>"
STAGES = ("hydrate", "filter", "retrieve", "rank", "select")


def planted(number: int) -> dict[str, object]:
    """List 0 to 999, one a second: times 1 to 100 ms, v2 from 600 on, 5% fallbacks, 3 late."""
    codes = ["unknown_user"] if number % 10 == 0 else []
    codes += ["late_source"] if number in (100, 200, 300) else []
    total = float(1 + number % 100)
    return {
        "bundle": "v2" if number >= 600 else "v1",
        "surface": HOSTILE if number % 4 == 0 else "home",
        "user_id": None if number % 5 == 1 else f"u{number}",
        "degraded": codes,
        "fallback": "popularity" if number % 20 == 0 else None,
        "timings_ms": {**dict.fromkeys(STAGES, total / 10), "total": total},
        "items": [{"item_id": "i", "score": 1.0, "source": "ease"}] * 3
        + [{"item_id": "j", "score": 0.5, "source": "popularity"}],
    }


def empty(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text("")
    (folder / "lock").touch()
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return empty(tmp_path / "shop")


def logging(workspace: Path, num_lists: int, of, **settings):
    """Write a log, and make a dashboard that has read it."""
    write_log(workspace / "online", num_lists, of, **settings)
    context = dashboard(workspace.parent)
    request_log(context, workspace / "online").now(60)
    return context


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    return logging(empty(tmp_path_factory.mktemp("logged") / "shop"), 1_000, planted)


def test_known_numbers_of_a_log(logged):
    page = build(logged, Query.of())
    assert page.notices == []
    found = tiles(page)
    assert found["Lists served"].value == "1,000"
    assert found["Lists served"].note == "2026-01-01 00:00 to 2026-01-01 00:16 UTC"
    # Quantiles of 1 to 100, ten times each.
    assert float(found["Time of a list, p95"].value.split()[0]) == pytest.approx(95, rel=0.05)
    assert found["Late or failed parts"].value == "0.30%"
    assert found["Version of the newest list"].value == "v2"
    codes = {row[0]: row[1:3] for row in table(page, "codes").rows}
    assert codes == {
        "no user": (200, 0.2),
        "unknown_user": (100, 0.1),
        "fallback": (50, 0.05),
        "late_source": (3, 0.003),
    }


def test_a_champion_without_a_logged_list_is_said(workspace: Path):
    context = logging(workspace, 1, lambda _: {})
    current = workspace / "bundles" / "current"
    (workspace / "bundles" / "bundle-v3").mkdir(parents=True)
    current.symlink_to("bundle-v3")
    (notice,) = build(context, Query.of()).notices
    assert notice.startswith("v3 is the champion, and no logged list is of it")
    assert "of v1." in notice
    current.unlink()
    current.symlink_to("bundle-v1")
    assert build(context, Query.of()).notices == []


def test_versions_stages_and_sources(logged):
    page = build(logged, Query.of())
    found = charts(page)
    versions = found["versions"]
    assert list(versions.legend) == ["v1", "v2"]
    assert sum(row[2] for row in versions.rows if row[1] == "v1") == 600
    assert versions.rows[0][:3] == ("2026-01-01T00:00:00Z", "v1", 60)
    # A minute a row; v2 takes over at a full minute.
    assert len(versions.rows) == 17
    assert [row[1] for row in versions.rows] == ["v1"] * 10 + ["v2"] * 7
    stages = {row[0]: row for row in table(page, "stages").rows}
    assert stages["total"][1:4] == pytest.approx((50.5, 95.05, 99.01), rel=0.05)
    assert stages["rank"][1:3] == pytest.approx((5.05, 9.505), rel=0.05)
    # Seconds 0 to 59: totals of 1 to 60 ms.
    latency = found["latency"]
    first = latency.rows[0]
    assert first[:2] == ("2026-01-01T00:00:00Z", "p50")
    assert first[2] == pytest.approx(30.5, rel=0.05)
    assert table(page, "sources").rows == [("ease", 3_000, 0.75), ("popularity", 1_000, 0.25)]
    for chart in found.values():
        json.dumps(chart.spec)


def test_range_and_surface_choose(logged):
    page = build(logged, Query.of(surface=HOSTILE, range="1h"))
    assert tiles(page)["Lists served"].value == "250"
    assert [row[2] for row in charts(page)["versions"].rows] == [*[15] * 16, 10]
    assert {control.name: control.value for control in page.controls}["surface"] == HOSTILE
    for name, value in (("range", "2h"), ("surface", "y")):
        with pytest.raises(QueryError, match=f"{name} is '{value}', which is none of"):
            build(logged, Query.of(**{name: value}))


def test_while_the_log_is_read_that_is_said(workspace: Path, monkeypatch: pytest.MonkeyPatch):
    write_log(workspace / "online", 10, lambda _: {})
    gate, read = threading.Event(), SqliteStore.requests_between

    def waiting(self, *arguments):
        gate.wait(30)
        return read(self, *arguments)

    monkeypatch.setattr(SqliteStore, "requests_between", waiting)
    context = dashboard(workspace.parent)
    page = build(context, Query.of())
    assert page.notices == ["0 lists are read so far; more are being read"]
    assert page.refresh_seconds == 3.0
    gate.set()
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of())
    assert (page.notices, page.refresh_seconds) == ([], None)


def watched(workspace: Path):
    return build(dashboard(workspace.parent), Query.of())


def test_parity_says_what_is_equal_and_what_differs(workspace: Path):
    (workspace / "parity").mkdir()
    path = workspace / "parity" / "parity.json"
    parity = {
        "time": "2026-01-01T00:00:00+00:00",
        "bundle": "v1",
        "logged": 500,
        "requests": 100,
        "recomputed": 90,
        "equal": 90,
        "skipped": {"bundle_gone": 10},
        "differences": [],
    }
    path.write_text(json.dumps(parity))
    (words,) = sections(watched(workspace))["parity"].blocks
    assert words.tone == "good"
    assert "90 of 90 recomputed lists are equal to the last bit (100%)" in words.lines[0]
    assert words.lines[2] == "10 were not recomputed: their bundle is not in the folder any more."
    kind = {"what": HOSTILE, "count": 5, "first": 4, "largest": 0.5}
    parity |= {"equal": 85, "differences": [{**kind, "example": "ab"}]}
    path.write_text(json.dumps(parity))
    page = watched(workspace)
    assert sections(page)["parity"].blocks[0].tone == "bad"
    assert table(page, "parity").rows == [(HOSTILE, 4, 0.5, "ab")]
    path.write_text('{"time"')
    assert "parity.json" in watched(workspace).notices[0]


def test_alarms_of_the_monitor_come_first_in_words(workspace: Path):
    (workspace / "monitoring").mkdir()
    signal = {"group": "volume", "low": 1.0, "high": 2.0, "since": None, "drift": True}
    quiet = {"name": "a", "title": "A", "value": 1.5, "alarm": False, "words": "1.5"}
    loud = {"name": "b", "title": "B", "value": 9.0, "alarm": True, "words": "9"}
    fresh = {"title": "events, by day", "newest": "2026-01-01", "age_days": 0.1}
    document = {
        "time": "2026-01-02T03:00:00+00:00",
        "day": "2026-01-01",
        "alarm": True,
        "words": ["2026-01-01: alarm of 1 signal.", HOSTILE],
        "signals": [{**signal, **quiet, "state": "quiet"}, {**signal, **loud, "state": "alarm"}],
        "freshness": [{**fresh, "limit_days": None, "alarm": False, "words": "in time"}],
        "recent_alarms": [{"day": "2026-01-01", "titles": ["B"]}],
    }
    path = workspace / "monitoring" / "monitor.json"
    path.write_text(json.dumps(document))
    said, freshness, signals, recent = sections(watched(workspace))["monitor"].blocks
    assert recent.lines[1:] == ["2026-01-01: B"]
    assert said.tone == "bad"
    assert said.lines[1:] == ["2026-01-01: alarm of 1 signal.", HOSTILE]
    assert freshness.rows[0][:5] == ("events, by day", "quiet", "2026-01-01", 0.1, None)
    assert [(row[0], row[2]) for row in signals.rows] == [("B", "ALARM"), ("A", "quiet")]
    path.write_text(json.dumps({**document, "signals": 3}))
    assert "recsys monitor" in watched(workspace).notices[0]


def test_arms_are_counted(workspace: Path):
    context = logging(
        workspace, 20, lambda number: {"experiment": {"name": HOSTILE, "arm": "ab"[number % 2]}}
    )
    page = build(context, Query.of())
    assert [row[:2] for row in table(page, "arms").rows] == [
        (f"{HOSTILE}: a", 10),
        (f"{HOSTILE}: b", 10),
    ]
    words = sections(page)["experiments"].blocks[1]
    assert f"recsys data export --store sqlite:{workspace}/online " in words.lines[0]
