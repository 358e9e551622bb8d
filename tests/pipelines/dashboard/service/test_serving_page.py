"""The page of serving: known numbers of a handmade log, a server, documents of a workspace."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.service import live
from pipelines.dashboard.service.live import histogram_quantile, parse_sample
from pipelines.dashboard.service.request_log import request_log
from pipelines.dashboard.service.serving import build, exports
from pipelines.dashboard.service.traffic import choose_view
from serving.metrics import ServerMetrics
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.documents import charts, dashboard, sections, table, tiles
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
    assert found["Lists served"].note == "2026-01-01 00:00:00 to 2026-01-01 00:16:39 UTC"
    # Quantiles of 1 to 100, ten times each.
    assert float(found["Time of a list, p95"].value.split()[0]) == pytest.approx(95, rel=0.05)
    assert found["Late or failed parts"].value == "0.30%"
    assert found["Fallback"].value == "5.00%"
    unknown = found["Users that the bundle does not know"]
    assert (unknown.value, unknown.note) == ("10.00%", "of all lists; 20.00% more named no user")
    assert found["Version of the newest list"].value == "v2"
    codes = {row[0]: row[1] for row in table(page, "codes").rows}
    assert codes == {"unknown_user": 100, "late_source": 3, "no user": 200, "fallback": 50}


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


def test_lines_are_not_drawn_over_stretches_without_lists(logged):
    (run,) = logged.stores.workspaces()
    view = choose_view(request_log(logged, run.path / "online").now(60), Query.of(step="minute"))
    assert view.stretches([]) == []
    assert view.stretches([0, 60_000, 240_000, 300_000]) == [0, 0, 1, 1]


def test_swaps_versions_stages_and_sources(logged):
    page = build(logged, Query.of(stage="rank"))
    (row,) = table(page, "swaps").rows
    assert row[:2] == ("2026-01-01T00:10:00.000Z", "v2")
    assert "v2 took over from v1" in row[2]
    found = charts(page)
    versions = found["versions"]
    assert list(versions.legend) == ["v1", "v2"]
    assert sum(row[3] for row in versions.rows if row[2] == "v1") == 600
    assert (versions.rows[0][0], *versions.rows[0][2:4]) == ("2026-01-01T00:00:00.000Z", "v1", 60)
    assert len(versions.rows) == 17
    stages = {row[0]: row for row in found["stages"].rows}
    assert stages["total"][2:5] == pytest.approx((50.5, 95.05, 99.01), rel=0.05)
    assert stages["rank"][2:4] == pytest.approx((5.05, 9.505), rel=0.05)
    # Seconds 0 to 59: totals of 1 to 60 ms, a tenth of each in the ranker.
    latency = found["latency"]
    assert latency.title == "Milliseconds of rank"
    assert (latency.rows[0][0], latency.rows[0][3]) == ("2026-01-01T00:00:00.000Z", 60)
    assert latency.rows[0][2] == pytest.approx(3.05, rel=0.05)
    assert [row[2:5] for row in found["sources"].rows[:2]] == [
        ("ease", 180, 0.75),
        ("popularity", 60, 0.25),
    ]
    for chart in found.values():
        json.dumps(chart.spec)


def test_range_step_and_surface_choose(logged):
    page = build(logged, Query.of(surface=HOSTILE, range="1h", step="5 minutes"))
    assert tiles(page)["Lists served"].value == "250"
    assert [row[3] for row in charts(page)["versions"].rows] == [75, 75, 75, 25]
    assert {control.name: control.value for control in page.controls}["surface"] == HOSTILE
    for name, value in (("range", "2h"), ("step", "year"), ("stage", "x"), ("surface", "y")):
        with pytest.raises(QueryError, match=f"{name} is '{value}', which is none of"):
            build(logged, Query.of(**{name: value}))


def test_too_fine_steps_and_missing_times_are_said(workspace: Path):
    context = logging(workspace, 100, lambda _: {}, every_ms=3_600_000)
    page = build(context, Query.of(range="all", step="minute"))
    assert page.notices == ["by minute there would be too many points; they are shown by 6 hours"]
    (words,) = sections(page)["latency"].blocks
    assert "kept no times" in words.lines[0]


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
    arms = sections(build(context, Query.of(part="experiments")))["experiments"]
    assert "once all of the log is read" in arms.blocks[0].lines[0]
    gate.set()
    request_log(context, workspace / "online").now(60)
    page = build(context, Query.of())
    assert (page.notices, page.refresh_seconds) == ([], None)


@pytest.mark.parametrize(
    ("part", "key", "words"),
    [
        ("log", None, "recsys serve "),
        ("server", "live", "No server was named"),
        ("watch", "monitor", "recsys monitor"),
        ("watch", "parity", "recsys parity"),
        ("experiments", "experiments", "No list of an experiment"),
        ("experiments", "off-policy", "recsys ope"),
    ],
)
def test_nothing_to_show_says_what_to_do(workspace: Path, part: str, key: str | None, words: str):
    page = build(dashboard(workspace.parent), Query.of(part=part))
    block = page.blocks[0] if key is None else sections(page)[key].blocks[0]
    assert words in block.lines[0]


class Handler(BaseHTTPRequestHandler):
    """Sends what the server says, which a test changes."""

    def do_GET(self) -> None:
        status, body = self.server.reply
        self.send_response(status)
        self.send_header("location", "/other")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "LEAST_SECONDS", 0.0)
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def test_a_live_server_is_read_and_its_rates_are_drawn(
    workspace: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
):
    clock = iter(range(1_000_000, 1_000_100, 10))
    monkeypatch.setattr(live, "now_ms", lambda: 1_000 * next(clock))
    metrics = ServerMetrics()
    metrics.bundle("v7", "d", 7_200.0)
    metrics.workers(1, 2)
    context = dashboard(workspace.parent, server=f"http://127.0.0.1:{server.server_port}")
    server.reply = (200, metrics.render()[0])
    page = build(context, Query.of(part="server", refresh="1"))
    assert page.refresh_seconds == 3.0
    assert "Refresh the page" in sections(page)["live"].blocks[-1].lines[0]
    for _ in range(50):
        metrics.observe_reply({"total": 1.5}, ["ease"], [], None)
    for _ in range(5):
        metrics.refused("queue_full")
    server.reply = (200, metrics.render()[0])
    page = build(context, Query.of(part="server"))
    found = tiles(page)
    assert (found["Bundle"].value, found["Bundle"].note) == ("v7", "released 2.0 h ago")
    assert (found["Workers"].value, found["Workers"].tone) == ("1 of 2", "bad")
    assert (found["Lists made"].value, found["Refused"].value) == ("50", "5")
    assert {row[1]: row[2] for row in charts(page)["rates"].rows} == {"lists": 5.0, "refused": 0.5}
    # All between 1 and 2 ms: 95% of the way.
    assert charts(page)["live-stages"].rows == [("1970-01-12T13:46:50.000Z", "total", 1.95)]
    assert ("refused", "queue_full", 5) in table(page, "counters").rows


def test_a_server_that_is_away_strange_or_wants_a_key_is_said(
    workspace: Path, server: ThreadingHTTPServer
):
    def notice(address: str) -> str:
        context = dashboard(workspace.parent, server=address)
        (found,) = build(context, Query.of(part="server")).notices
        return found

    for reply, words in (
        ((401, b""), "it answered 401; its metrics need a key"),
        ((302, b""), "it answered 302"),
        ((200, b"<html>"), "its metrics"),
        ((200, b"x 1\n"), "not those of recsys serve"),
        ((200, b"\xff"), "cannot be read"),
    ):
        server.reply = reply
        assert words in notice(f"http://127.0.0.1:{server.server_port}")
    assert "cannot be read" in notice("http://127.0.0.1:9")
    assert "is no address" in notice("file:///etc/passwd")


def test_quantiles_of_buckets():
    assert histogram_quantile({0.1: 50.0, 0.2: 100.0, float("inf"): 100.0}, 0.75) == pytest.approx(
        0.15
    )
    assert histogram_quantile({0.1: 0.0, float("inf"): 0.0}, 0.5) is None
    assert histogram_quantile({0.1: 0.0, float("inf"): 4.0}, 0.5) == 0.1
    with pytest.raises(ValueError, match="not those of recsys"):
        parse_sample("", 0)


def watched(workspace: Path):
    return build(dashboard(workspace.parent), Query.of(part="watch"))


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
    kind = {"what": HOSTILE, "path": "f.py: g", "count": 5, "first": 4, "largest": 0.5}
    parity |= {"equal": 85, "differences": [{**kind, "example": "ab"}]}
    path.write_text(json.dumps(parity))
    page = watched(workspace)
    assert sections(page)["parity"].blocks[0].tone == "bad"
    assert table(page, "parity").rows == [(HOSTILE, 4, 0.5, "f.py: g", "ab")]
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
    words, freshness, signals, recent = sections(watched(workspace))["monitor"].blocks
    assert recent.lines[1:] == ["2026-01-01: B"]
    assert words.tone == "bad"
    assert words.lines[1:] == ["2026-01-01: alarm of 1 signal.", HOSTILE]
    assert freshness.rows[0][:5] == ("events, by day", "2026-01-01", 0.1, None, "quiet")
    assert [(row[0], row[2]) for row in signals.rows] == [("B", "ALARM"), ("A", "quiet")]
    path.write_text(json.dumps({**document, "signals": 3}))
    assert "recsys monitor" in watched(workspace).notices[0]


def test_an_experiment_with_few_users_claims_nothing(workspace: Path):
    records = write_log(
        workspace / "online",
        20,
        lambda number: {"experiment": {"name": HOSTILE, "arm": "ab"[number % 2]}},
    )
    store = SqliteStore(workspace / "online")
    store.add_events([click(number, records[number], 1_000) for number in (1, 3)])
    store.close()
    context = dashboard(workspace.parent)
    request_log(context, workspace / "online").now(60)
    words, arms = sections(build(context, Query.of(part="experiments")))["experiments"].blocks
    assert "Too few users for a claim on b" in words.lines[0]
    assert arms.title == HOSTILE
    assert [row[:5] for row in arms.rows] == [
        ("a", 10, 10, 10, 0.0),
        ("b", 10, 10, 10, pytest.approx(0.2)),
    ]
    for name, value in (("part", "x"), ("window", "2d")):
        with pytest.raises(QueryError, match=f"{name} is '{value}'"):
            build(context, Query.of(**{"part": "experiments", name: value}))


def test_an_export_holds_all_parts_but_the_live_server(logged):
    parts = [query.text("part") for query in exports(logged, Query.of(run="r"))]
    assert parts == ["log", "watch", "experiments"]
