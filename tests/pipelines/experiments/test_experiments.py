"""From served lists and clicks to what an experiment has shown."""

import json
import time
from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.experiments.analysis import EVENTS, LISTS, Collected, analyse
from pipelines.inputs.online_events import export_store
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord

DAY_MS = 86_400_000
CONFIGURATION = """
[[experiments]]
name = "lifted"
surfaces = ["home"]
arms = [{name = "plain"}, {name = "better"}]

[[experiments]]
name = "null"
surfaces = ["cart"]
arms = [{name = "control", weight = 1}, {name = "same", weight = 1}]
"""


def served(user, experiment, arm, at_ms, random):
    request_id = f"{at_ms:012x}{random.bytes(10).hex()}"
    document = {
        "request_id": request_id,
        "unix_ms": at_ms,
        "user_id": user,
        "surface": "home",
        "bundle": "b",
        "items": [
            {"item_id": f"i{slot}", "score": 1.0, "source": "popularity"} for slot in range(2)
        ],
    }
    if experiment:
        document["experiment"] = {"name": experiment, "arm": arm}
    return RequestRecord(request_id, at_ms, user, json.dumps(document).encode())


def click(number, record, at_ms, event_type="click"):
    return Event(
        event_id=f"e{number}",
        user_id=record.user_id,
        item_id="i0",
        event_type=event_type,
        time_ms=at_ms,
        received_ms=at_ms,
        request_id=record.request_id,
        slot=1,
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Ten days of 240 users a day in each of two experiments: one lifts clicks by a half."""
    folder = tmp_path_factory.mktemp("online")
    found, random = SqliteStore(folder), np.random.default_rng(0)
    records, events = [], []
    begin = int(1_000 * time.time()) - 11 * DAY_MS
    for number in range(4_800):
        experiment, arms = [("lifted", ("plain", "better")), ("null", ("control", "same"))][
            number % 2
        ]
        side = int(random.integers(2))
        at_ms = begin + number * 10 * DAY_MS // 4_800
        for visit in range(1 + int(random.integers(2))):
            own = served(f"u{number}", experiment, arms[side], at_ms + visit * 60_000, random)
            records.append(own)
            rate = 0.45 if arms[side] == "better" else 0.3
            for _ in range(random.poisson(rate)):
                events.append(click(len(events), own, own.time_ms + 5_000))
    records += [
        served("u-none", None, None, begin, random),
        served(None, "null", "same", begin, random),
    ]
    found.add_requests(records)
    found.add_events(events)
    found.close()
    export_store(f"sqlite:{folder}", folder / "out")
    return folder / "out"


def run(*arguments):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["experiments", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_planted_lift_is_shown_and_a_null_is_not(exported, tmp_path):
    config = tmp_path / "serving.toml"
    config.write_text(CONFIGURATION)
    given = ("--exported", exported, "--serving-config", config)
    printed = run(*given)
    assert "better is ahead of plain in click events per user" in printed
    assert "No difference between same and control is shown yet; it is between -" in printed
    assert "Do not trust" not in printed
    lifted, _ = json.loads(run(*given, "--json"))
    plain, better = lifted["arms"]
    assert plain["users"] + better["users"] == 2_400
    assert 0 < better["low"] < better["difference"] < better["high"]
    # One or two lists of 0.3 clicks each.
    assert plain["outcome"] == pytest.approx(0.45, abs=0.05)
    bought = json.loads(run(*given, "--json", "--event", "purchase"))
    assert bought[0]["arms"][0]["outcome"] == 0


def frames(lists, events, as_of_ms):
    return Collected(
        pl.DataFrame(lists, schema=LISTS, orient="row"),
        pl.DataFrame(events, schema=EVENTS, orient="row"),
        as_of_ms,
    )


def test_users_count_once_in_their_first_arm_within_their_window():
    hour = 3_600_000
    lists = [
        ("r1", "ann", "x", "a", 0),
        ("r2", "ann", "x", "b", 2 * hour),
        ("r3", "ann", "x", "a", 25 * hour),
        ("r4", "bo", "x", "b", 3 * hour),
        ("r5", "cy", "x", "b", 40 * hour),
        ("r6", None, "x", "b", 0),
    ]
    clicks = [("r1", hour), ("r2", 3 * hour), ("r2", 24 * hour), ("r3", 26 * hour), ("other", 0)]
    collected = frames(lists, clicks, 48 * hour)
    (found,) = analyse(collected)
    first, second = found.arms
    assert (first.name, first.users, first.settled) == ("a", 1, 1)
    assert (second.name, second.users, second.settled) == ("b", 2, 1)
    assert (first.outcome, second.outcome) == (2.0, 0.0)
    assert second.low is None
    (early,) = analyse(collected, timedelta(days=3))
    assert (early.arms[0].settled, early.arms[0].outcome) == (0, None)
    said = list(early.sentences("clicks"))
    assert said[-1].startswith("Too few users for a claim on b: it needs 100")


def test_arms_that_lose_users_are_not_to_be_trusted():
    lists = [(f"r{n}", f"u{n}", "x", "a" if n % 5 < 3 else "b", n) for n in range(1_000)]
    collected = frames(lists, [], 10 * DAY_MS)
    (found,) = analyse(collected)
    assert found.doubted
    said = list(found.sentences("clicks"))
    assert said[0].startswith("Do not trust the comparison: arms have 600, 400 users")
    assert said[1] == "No user of a differs from one of b in clicks yet."
    (planned,) = analyse(collected, weights={"x": {"b": 2.0, "a": 3.0}})
    assert not planned.doubted
    assert [arm.share for arm in planned.arms] == [0.4, 0.6]
    (unknown,) = analyse(collected, weights={"x": {"b": 2.0, "c": 3.0}})
    assert unknown.ratio_p_value is None
    assert [arm.users for arm in unknown.arms] == [400, 0, 600]


def test_bad_options_are_refused(exported, tmp_path):
    for arguments, message in [
        (["--event", "buy"], "choose one of view, click"),
        (["--window", "1 day"], "a whole number and a unit"),
        (["--exported", tmp_path], "holds no served lists"),
    ]:
        given = map(str, ["experiments", "--exported", exported, *arguments])
        done = CliRunner().invoke(app, list(given))
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())
