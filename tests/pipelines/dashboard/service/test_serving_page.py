"""The page of serving: known numbers of a handmade log, a server, documents of a workspace."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.service import live
from pipelines.dashboard.service.live import quantile_of, sample_of
from pipelines.dashboard.service.request_log import request_log
from pipelines.dashboard.service.serving import build
from pipelines.dashboard.service.traffic import view_of
from pipelines.pages.document import Chart, Page, Section, Table, Tiles, Words
from serving.metrics import ServerMetrics
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.documents import dashboard
from tests.pipelines.dashboard.service.online_log import click, write_log

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
        "fallback": "popular" if number % 20 == 0 else None,
        "timings_ms": {**dict.fromkeys(STAGES, total / 10), "total": total},
        "items": [{"item_id": "i", "score": 1.0, "source": "ease"}] * 3
        + [{"item_id": "j", "score": 0.5, "source": "popular"}],
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    (folder / "lock").touch()
    return folder


@pytest.fixture
def logged(workspace: Path) -> Context:
    write_log(workspace / "online", 1_000, planted)
    context = context_of(workspace)
    request_log(context, workspace / "online").now(60)
    return context


def context_of(workspace: Path, **more: object) -> Context:
    return dashboard(workspace.parent, **more)


def sections(page: Page) -> dict[str, Section]:
    return {one.key: one for one in page.blocks if isinstance(one, Section)}


def chart_of(section: Section, key: str) -> Chart:
    (found,) = (one for one in section.blocks if isinstance(one, Chart) and one.key == key)
    json.dumps(found.spec)
    return found


def table_of(section: Section, key: str) -> Table:
    (found,) = (one for one in section.blocks if isinstance(one, Table) and one.key == key)
    return found


def test_known_numbers_of_a_log(logged: Context):
    page = build(logged, Query.of())
    assert page.notices == []
    tiles = {
        tile.label: tile for one in page.blocks if isinstance(one, Tiles) for tile in one.tiles
    }
    assert tiles["Lists served"].value == "1,000"
    assert tiles["Lists served"].note == "2026-01-01 00:00:00 to 2026-01-01 00:16:39 UTC"
    # Quantiles of 1 to 100, ten times each.
    assert float(tiles["Time of a list, p95"].value.split()[0]) == pytest.approx(95, rel=0.05)
    assert tiles["Late or failed parts"].value == "0.30%"
    assert tiles["Fallback"].value == "5.00%"
    unknown = tiles["Users that the bundle does not know"]
    assert unknown.value == "10.00%"
    assert unknown.note == "of all lists; 20.00% more named no user"
    assert tiles["Version of the newest list"].value == "v2"
    codes = {row[0]: row[1] for row in table_of(sections(page)["degraded"], "codes").rows}
    assert codes == {
        "unknown_user": 100,
        "late_source": 3,
        "no user": 200,
        "fallback": 50,
    }


def test_a_champion_without_a_logged_list_is_said(logged: Context, workspace: Path):
    bundles = workspace / "bundles"
    (bundles / "bundle-v3").mkdir(parents=True)
    (bundles / "current").symlink_to("bundle-v3")
    (notice,) = build(logged, Query.of()).notices
    assert notice.startswith("v3 is the champion, and no logged list is of it")
    assert "v1, v2" in notice
    (bundles / "current").unlink()
    (bundles / "current").symlink_to("bundle-v2")
    assert build(logged, Query.of()).notices == []


def test_lines_are_not_drawn_over_stretches_without_lists(logged: Context, workspace: Path):
    log = request_log(logged, workspace / "online").now(60)
    view = view_of(log, Query.of(step="minute"))
    assert view.stretches([]) == []
    assert view.stretches([0, 60_000, 240_000, 300_000]) == [0, 0, 1, 1]


def test_a_swap_is_found_and_lists_are_counted_by_version(logged: Context):
    section = sections(build(logged, Query.of()))["traffic"]
    (row,) = table_of(section, "swaps").rows
    assert row[:2] == ("2026-01-01T00:10:00.000Z", "v2")
    assert "v2 took over from v1" in row[2]
    chart = chart_of(section, "versions")
    assert list(chart.legend) == ["v1", "v2"]
    assert sum(row[3] for row in chart.rows if row[2] == "v1") == 600
    assert (chart.rows[0][0], *chart.rows[0][2:4]) == ("2026-01-01T00:00:00.000Z", "v1", 60)
    assert len(chart.rows) == 17


def test_time_by_stage_and_over_time(logged: Context):
    section = sections(build(logged, Query.of(stage="rank")))["latency"]
    stages = {row[0]: row for row in chart_of(section, "stages").rows}
    assert stages["total"][2:5] == pytest.approx((50.5, 95.05, 99.01), rel=0.05)
    assert stages["rank"][2:4] == pytest.approx((5.05, 9.505), rel=0.05)
    chart = chart_of(section, "latency")
    assert chart.title == "Milliseconds of rank"
    # Seconds 0 to 59: totals of 1 to 60 ms, a tenth of each in the ranker.
    assert (chart.rows[0][0], chart.rows[0][3]) == ("2026-01-01T00:00:00.000Z", 60)
    assert chart.rows[0][2] == pytest.approx(3.05, rel=0.05)


def test_sources_are_shares_of_shown_items(logged: Context):
    chart = chart_of(sections(build(logged, Query.of()))["sources"], "sources")
    assert [row[2:5] for row in chart.rows[:2]] == [("ease", 180, 0.75), ("popular", 60, 0.25)]


def test_range_step_and_surface_choose(logged: Context):
    one = build(logged, Query.of(surface=HOSTILE, range="1h", step="5 minutes"))
    tiles = next(block for block in one.blocks if isinstance(block, Tiles)).tiles
    assert tiles[0].value == "250"
    chart = chart_of(sections(one)["traffic"], "versions")
    assert [row[3] for row in chart.rows] == [75, 75, 75, 25]
    assert {control.name: control.value for control in one.controls}["surface"] == HOSTILE
    for name, value in (("range", "2h"), ("step", "year"), ("stage", "x"), ("surface", "y")):
        with pytest.raises(QueryError, match=f"{name} is '{value}', which is none of"):
            build(logged, Query.of(**{name: value}))


def test_too_fine_steps_are_made_coarser_and_that_is_said(workspace: Path):
    write_log(workspace / "online", 100, lambda _: {}, every_ms=3_600_000)
    context = context_of(workspace)
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of(range="all", step="minute"))
    assert page.notices == ["by minute there would be too many points; they are shown by 6 hours"]


def test_a_log_without_times_says_so(workspace: Path):
    write_log(workspace / "online", 3, lambda _: {})
    context = context_of(workspace)
    request_log(context, workspace / "online").now(60)
    (words,) = sections(build(context, Query.of()))["latency"].blocks
    assert "kept no times" in words.lines[0]


def test_while_the_log_is_read_that_is_said(workspace: Path, monkeypatch: pytest.MonkeyPatch):
    write_log(workspace / "online", 10, lambda _: {})
    gate = threading.Event()
    read = SqliteStore.requests_between

    def waiting(self, *arguments):
        gate.wait(30)
        return read(self, *arguments)

    monkeypatch.setattr(SqliteStore, "requests_between", waiting)
    context = context_of(workspace)
    page = build(context, Query.of())
    assert page.notices == ["0 lists are read so far; more are being read"]
    assert page.refresh_seconds == 3.0
    arms = sections(build(context, Query.of(part="experiments")))["experiments"]
    assert "once all of the log is read" in arms.blocks[0].lines[0]
    gate.set()
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of())
    assert (page.notices, page.refresh_seconds) == ([], None)


def test_nothing_to_show_says_what_to_do(workspace: Path, tmp_path: Path):
    (words,) = build(context_of(workspace), Query.of()).blocks
    assert "recsys serve " in words.lines[0]
    (tmp_path / "none").mkdir()
    empty = dashboard(tmp_path / "none")
    assert "There is no workspace yet" in build(empty, Query.of()).blocks[0].lines[0]
    (live_one,) = build(empty, Query.of(part="server")).blocks
    assert "No server was named" in live_one.blocks[0].lines[0]
    watch = sections(build(context_of(workspace), Query.of(part="watch")))
    assert "recsys monitor" in watch["monitor"].blocks[0].lines[0]
    assert "recsys parity" in watch["parity"].blocks[0].lines[0]
    arms = sections(build(context_of(workspace), Query.of(part="experiments")))
    assert "No list of an experiment" in arms["experiments"].blocks[0].lines[0]
    assert "recsys ope" in arms["off-policy"].blocks[0].lines[0]
    with pytest.raises(QueryError, match="part is 'x'"):
        build(empty, Query.of(part="x"))


class Handler(BaseHTTPRequestHandler):
    """Sends what the server says, which a test changes."""

    def do_GET(self) -> None:
        status, body = self.server.reply
        self.send_response(status)
        self.send_header("location", "/other")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def test_a_live_server_is_read_and_its_rates_are_drawn(
    workspace: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "LEAST_SECONDS", 0.0)
    clock = iter(range(1_000_000, 1_000_100, 10))
    monkeypatch.setattr(live, "now_ms", lambda: 1_000 * next(clock))
    metrics = ServerMetrics()
    metrics.bundle("v7", "d", 7_200.0)
    metrics.workers(1, 2)
    context = context_of(workspace, server=f"http://127.0.0.1:{server.server_port}")
    server.reply = (200, metrics.render()[0])
    page = build(context, Query.of(part="server", refresh="1"))
    assert page.refresh_seconds == 3.0
    first = sections(page)["live"]
    assert isinstance(first.blocks[-1], Words)
    for _ in range(50):
        metrics.observe_reply({"total": 1.5}, ["ease"], [], None)
    for _ in range(5):
        metrics.refused("queue_full")
    server.reply = (200, metrics.render()[0])
    section = sections(build(context, Query.of(part="server")))["live"]
    tiles = {tile.label: tile for tile in section.blocks[0].tiles}
    assert (tiles["Bundle"].value, tiles["Bundle"].note) == ("v7", "released 2.0 h ago")
    assert (tiles["Workers"].value, tiles["Workers"].tone) == ("1 of 2", "bad")
    assert (tiles["Lists made"].value, tiles["Refused"].value) == ("50", "5")
    rates = {row[1]: row[2] for row in chart_of(section, "rates").rows}
    assert rates == {"lists": 5.0, "refused": 0.5}
    # All between 1 and 2 ms: 95% of the way.
    assert chart_of(section, "live-stages").rows == [("1970-01-12T13:46:50.000Z", "total", 1.95)]
    assert ("refused", "queue_full", 5) in table_of(section, "counters").rows


def test_a_server_that_is_away_strange_or_wants_a_key_is_said(
    workspace: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "LEAST_SECONDS", 0.0)
    context = context_of(workspace, server=f"http://127.0.0.1:{server.server_port}")
    for reply, words in (
        ((401, b""), "it answered 401; its metrics need a key"),
        ((302, b""), "it answered 302"),
        ((200, b"<html>"), "its metrics"),
        ((200, b"x 1\n"), "not those of recsys serve"),
        ((200, b"\xff"), "cannot be read"),
    ):
        server.reply = reply
        (notice,) = build(context, Query.of(part="server")).notices
        assert words in notice
    away = context_of(workspace, server="http://127.0.0.1:9")
    assert "cannot be read" in build(away, Query.of(part="server")).notices[0]
    file = context_of(workspace, server="file:///etc/passwd")
    assert "is no address" in build(file, Query.of(part="server")).notices[0]


def test_quantiles_of_buckets():
    assert quantile_of({0.1: 50.0, 0.2: 100.0, float("inf"): 100.0}, 0.75) == pytest.approx(0.15)
    assert quantile_of({0.1: 0.0, float("inf"): 0.0}, 0.5) is None
    assert quantile_of({0.1: 0.0, float("inf"): 4.0}, 0.5) == 0.1
    with pytest.raises(ValueError, match="not those of recsys"):
        sample_of("", 0)


def parity(**changes: object) -> dict[str, object]:
    return {
        "time": "2026-01-01T00:00:00+00:00",
        "bundle": "v1",
        "logged": 500,
        "requests": 100,
        "recomputed": 90,
        "equal": 90,
        "skipped": {"bundle_gone": 10},
        "differences": [],
        **changes,
    }


def test_parity_says_what_is_equal_and_what_differs(workspace: Path):
    (workspace / "parity").mkdir()
    path = workspace / "parity" / "parity.json"
    path.write_text(json.dumps(parity()))
    (words,) = sections(build(context_of(workspace), Query.of(part="watch")))["parity"].blocks
    assert words.tone == "good"
    assert "90 of 90 recomputed lists are equal to the last bit (100%)" in words.lines[0]
    assert words.lines[2] == "10 were not recomputed: their bundle is not in the folder any more."
    kind = {"what": HOSTILE, "path": "f.py: g", "count": 5, "first": 4, "largest": 0.5}
    path.write_text(json.dumps(parity(equal=85, differences=[{**kind, "example": "ab"}])))
    section = sections(build(context_of(workspace), Query.of(part="watch")))["parity"]
    assert section.blocks[0].tone == "bad"
    assert section.blocks[1].rows == [(HOSTILE, 4, 0.5, "f.py: g", "ab")]
    path.write_text('{"time"')
    assert "parity.json" in build(context_of(workspace), Query.of(part="watch")).notices[0]


def test_alarms_of_the_monitor_come_first_in_words(workspace: Path):
    (workspace / "monitoring").mkdir()
    signal = {"group": "volume", "low": 1.0, "high": 2.0, "since": None, "drift": True}
    document = {
        "time": "2026-01-02T03:00:00+00:00",
        "day": "2026-01-01",
        "alarm": True,
        "words": ["2026-01-01: alarm of 1 signal.", HOSTILE],
        "signals": [
            {**signal, "name": "a", "title": "A", "value": 1.5, "alarm": False, "words": "1.5"}
            | {"state": "quiet"},
            {**signal, "name": "b", "title": "B", "value": 9.0, "alarm": True, "words": "9"}
            | {"state": "alarm"},
        ],
        "freshness": [
            {"title": "events, by day", "newest": "2026-01-01", "age_days": 0.1}
            | {"limit_days": None, "alarm": False, "words": "in time"}
        ],
        "recent_alarms": [{"day": "2026-01-01", "titles": ["B"]}],
    }
    path = workspace / "monitoring" / "monitor.json"
    path.write_text(json.dumps(document))
    section = sections(build(context_of(workspace), Query.of(part="watch")))["monitor"]
    words, freshness, signals, recent = section.blocks
    assert recent.lines[1:] == ["2026-01-01: B"]
    assert words.tone == "bad"
    assert words.lines[1:] == ["2026-01-01: alarm of 1 signal.", HOSTILE]
    assert freshness.rows[0][:5] == ("events, by day", "2026-01-01", 0.1, None, "quiet")
    assert [(row[0], row[2]) for row in signals.rows] == [("B", "ALARM"), ("A", "quiet")]
    path.write_text(json.dumps({**document, "signals": 3}))
    assert "recsys monitor" in build(context_of(workspace), Query.of(part="watch")).notices[0]


def test_an_experiment_with_few_users_claims_nothing(workspace: Path):
    def of(number: int) -> dict[str, object]:
        return {"experiment": {"name": HOSTILE, "arm": "ab"[number % 2]}}

    records = write_log(workspace / "online", 20, of)
    store = SqliteStore(workspace / "online")
    store.add_events([click(number, records[number], 1_000) for number in (1, 3)])
    store.close()
    context = context_of(workspace)
    request_log(context, workspace / "online").now(60)
    section = sections(build(context, Query.of(part="experiments")))["experiments"]
    words, table = section.blocks
    assert "Too few users for a claim on b" in words.lines[0]
    assert table.title == HOSTILE
    assert [row[:5] for row in table.rows] == [
        ("a", 10, 10, 10, 0.0),
        ("b", 10, 10, 10, pytest.approx(0.2)),
    ]
    with pytest.raises(QueryError, match="window is '2d'"):
        build(context, Query.of(part="experiments", window="2d"))
