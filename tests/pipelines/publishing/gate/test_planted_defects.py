"""Each planted defect fails the check that names it; sound bundles pass all of them."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.config.operation import GateConfig
from pipelines.publishing.gate import Subject, bundle_verdicts
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import ContentSource, Verdict
from serving.bundle.write import BundleParts, write_bundle
from tests.pipelines.publishing.gate.planted import PLANTED, with_load, with_users
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

SIZE = SyntheticSize(
    num_items=120, num_users=60, events_per_user=12, history_models=True, ranker=True
)
CONFIG = GateConfig(num_queries=40, max_latency_ratio=0)


def parts_of(folder: Path, size: SyntheticSize = SIZE) -> BundleParts:
    folder.mkdir()
    parts = synthetic_parts(folder, size)
    source = ContentSource(encoder="hash", text_columns=["title"])
    times = np.asarray(parts.users.times)
    # Events of real people are not on the hour.
    described = replace(with_load(parts, folder, [0.25] * 4), content_source=source)
    return with_users(described, times=times + 37 * np.arange(len(times)) % 3_600)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> BundleParts:
    return parts_of(tmp_path_factory.mktemp("gate") / "parts")


@pytest.fixture(scope="module")
def champion(parts: BundleParts, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(write_bundle(tmp_path_factory.mktemp("champion"), parts, version="v1"))


def judged(champion: Bundle | None, folder: Path, parts: BundleParts) -> list[Verdict]:
    challenger = load_bundle(write_bundle(folder, parts, version="v2"))
    subject = Subject(challenger=challenger, champion=champion, config=CONFIG, now=time.time())
    return bundle_verdicts(subject)


def failed(verdicts: list[Verdict]) -> set[str]:
    return {one.name for one in verdicts if not one.passed}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_fails_the_check_that_names_it(name, parts, champion, tmp_path):
    plant, check = PLANTED[name]
    planted = plant(parts, tmp_path)
    assert check in failed(judged(champion, tmp_path / "bundles", planted))


def test_an_equal_bundle_passes_every_check(parts, champion, tmp_path):
    verdicts = judged(champion, tmp_path, parts)
    assert failed(verdicts) == set()
    assert len({one.name for one in verdicts}) >= 12
    assert all(one.reason for one in verdicts)


def test_a_first_bundle_needs_no_champion(parts, tmp_path):
    assert failed(judged(None, tmp_path, parts)) == set()


def test_half_the_catalogue_missing_is_refused(champion, tmp_path):
    half = parts_of(tmp_path / "parts", replace(SIZE, num_items=60))
    verdicts = judged(champion, tmp_path / "bundles", half)
    (found,) = [one for one in verdicts if one.name == "catalogue completeness"]
    assert (found.value, found.passed) == (0.5, False)


def test_a_gate_that_is_off_checks_nothing(champion):
    off = Subject(challenger=champion, config=GateConfig(enabled=False))
    assert bundle_verdicts(off) == []
