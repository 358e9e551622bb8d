"""Checks whose evidence is not a bundle: gains, times, documents of other commands."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.release import GateConfig
from pipelines.publishing.gate.checks import (
    CLOCK_SKEW,
    input_arrived,
    not_in_the_future,
    read_once,
    too_good,
)
from pipelines.publishing.gate.lists import BundleLists, latency
from pipelines.publishing.gate.subject import Subject
from serving.bundle.load import Bundle, load_bundle
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

NOW = time.time()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    size = SyntheticSize(num_items=60, num_users=400)
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("bundle"), "v1", size))


@pytest.mark.parametrize(("beyond", "passes"), [(0, True), (1, False)])
def test_an_event_may_be_ahead_of_the_clock_by_the_allowed_skew_alone(
    beyond: int, passes: bool, bundle: Bundle
) -> None:
    newest = int(np.max(np.asarray(bundle.users.times)))
    subject = Subject(challenger=bundle, now=newest - CLOCK_SKEW - beyond)
    (verdict,) = not_in_the_future(subject)
    assert verdict.passed is passes
    assert CLOCK_SKEW == 3_600


def test_a_file_that_was_delivered_twice_is_refused(bundle: Bundle) -> None:
    def share(duplicates: int) -> bool:
        report = {"rows_in": 1_000, "duplicates": duplicates}
        return all(one.passed for one in read_once(Subject(challenger=bundle, report=report)))

    assert share(100)
    assert not share(500)


@pytest.mark.parametrize(("ranked", "passed"), [(0.11, True), (0.19, True), (0.25, False)])
def test_a_ranker_that_doubles_the_list_it_reorders_is_held_back(
    bundle: Bundle, ranked: float, passed: bool
) -> None:
    subject = Subject(
        challenger=bundle,
        metrics={"blend_fast": {"ndcg@10": 0.1}, "ranked": {"ndcg@10": ranked}},
        answered=pl.DataFrame({"user_id": [str(row) for row in range(300)]}),
    )
    (verdict,) = too_good(subject)
    assert verdict.passed is passed
    assert "looks too good" in verdict.reason


def test_a_slow_bundle_is_refused_by_the_champions_time(bundle: Bundle) -> None:
    def judged(challenger: float, champion: float) -> bool:
        lists = [BundleLists(bundle, [], [one] * 9) for one in (challenger, champion)]
        return latency(Subject(challenger=bundle), *lists).passed

    assert judged(12, 2)
    assert judged(50, 20)
    assert not judged(70, 20)
    assert not judged(600, 400)


def documents(folder: Path, monitor: object = None) -> Subject:
    if monitor is not None:
        path = folder / "monitoring/monitor.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(monitor))
    bundle = write_synthetic_bundle(folder / "bundles", "v1")
    loaded = load_bundle(bundle)
    return Subject(challenger=loaded, champion=loaded, workspace=folder, now=NOW)


def signal(name: str, **fields: object) -> dict[str, object]:
    usual = {"group": "volume", "drift": False, "alarm": True, "value": 10, "low": 100, "high": 900}
    return {"name": name, "title": name, **usual, **fields}


@pytest.mark.parametrize(
    ("alarm", "passed"),
    [
        (signal("events"), False),
        (signal("events", value=2_000), True),
        (signal("categories", group="events", drift=True), True),
        (signal("events", alarm=False), True),
    ],
)
def test_missing_input_refuses_and_drift_does_not(
    alarm: dict[str, object], passed: bool, tmp_path: Path
) -> None:
    moment = datetime.fromtimestamp(NOW, UTC).isoformat()
    subject = documents(tmp_path, monitor={"as_of": moment, "signals": [alarm], "freshness": []})
    assert all(one.passed for one in input_arrived(subject)) is passed
    old = {"as_of": "2020-01-01T00:00:00+00:00", "signals": [alarm]}
    assert all(one.passed for one in input_arrived(documents(tmp_path / "later", monitor=old)))


def test_no_document_no_verdict_and_a_broken_one_is_named(tmp_path: Path) -> None:
    subject = documents(tmp_path)
    assert [*input_arrived(subject)] == []
    (tmp_path / "monitoring").mkdir()
    (tmp_path / "monitoring/monitor.json").write_text("{")
    with pytest.raises(ValueError, match=r"monitor.json is not JSON"):
        list(input_arrived(subject))


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match=r"gate.min_kept_items must be in \[0, 1\], got 2"):
        GateConfig(min_kept_items=2)
    with pytest.raises(ValueError, match=r"gate.num_queries must be >= 1, got 0"):
        GateConfig(num_queries=0)
