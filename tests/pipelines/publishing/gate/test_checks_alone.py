"""Checks whose evidence is not a bundle: gains and times."""

from dataclasses import replace

import numpy as np
import pytest

from pipelines.config.operation import ReleaseConfig
from pipelines.publishing.gate import (
    CLOCK_SKEW,
    BundleLists,
    Subject,
    good_lists,
    latency,
    not_in_the_future,
    read_once,
    too_good,
)
from recsys.evaluation.paired import paired
from serving.bundle.load import Bundle, load_bundle
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    size = SyntheticSize(num_items=60, num_users=400)
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("bundle"), "v1", size))


@pytest.mark.parametrize(("beyond", "passes"), [(0, True), (1, False)])
def test_an_event_may_be_ahead_of_the_clock_by_the_allowed_skew_alone(beyond, passes, bundle):
    newest = int(np.max(np.asarray(bundle.users.times)))
    subject = Subject(challenger=bundle, now=newest - CLOCK_SKEW - beyond)
    (verdict,) = not_in_the_future(subject)
    assert verdict.passed is passes
    assert CLOCK_SKEW == 3_600


def test_a_file_that_was_delivered_twice_is_refused(bundle):
    def share(duplicates: int) -> bool:
        report = {"rows_in": 1_000, "duplicates": duplicates}
        return all(one.passed for one in read_once(Subject(challenger=bundle, report=report)))

    assert share(100)
    assert not share(500)


def test_a_gain_that_doubles_the_champion_is_held_back(bundle):
    before = np.random.default_rng(0).random(400)
    for factor, passed in ((1.5, True), (2.5, False)):
        found = paired(before, factor * before, ReleaseConfig().paired())
        (verdict,) = too_good(Subject(challenger=bundle, champion=bundle, paired=found))
        assert verdict.passed is passed
    assert "release.gate.max_gain" in verdict.reason


def test_variety_is_held_against_a_champion_of_the_same_models(bundle):
    def checked(models: list[str]) -> bool:
        manifest = bundle.manifest.model_copy(update={"models": models})
        champion = replace(bundle, manifest=manifest)
        verdicts = good_lists(Subject(challenger=bundle, champion=champion))
        return "catalogue coverage" in {one.name for one in verdicts}

    assert checked(bundle.manifest.models)
    assert not checked(bundle.manifest.models[1:])


@pytest.mark.parametrize(("ranked", "passed"), [(0.11, True), (0.19, True), (0.25, False)])
def test_a_ranker_that_doubles_the_list_it_reorders_is_held_back(bundle, ranked, passed):
    (verdict,) = too_good(Subject(challenger=bundle, ranked=(ranked, 0.1)))
    assert verdict.passed is passed
    assert "may hold the label" in verdict.reason


def test_a_slow_bundle_is_refused_by_the_champions_time(bundle):
    def judged(challenger: float, champion: float) -> bool:
        lists = [BundleLists(bundle, [], [one] * 9) for one in (challenger, champion)]
        return latency(Subject(challenger=bundle), *lists).passed

    assert judged(12, 2)
    assert judged(50, 20)
    assert not judged(70, 20)
    assert not judged(600, 400)
