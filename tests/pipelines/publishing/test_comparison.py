from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.config.release import ReleaseConfig
from pipelines.config.toml import validate
from pipelines.publishing.comparison import (
    Compared,
    compare,
    comparison_verdicts,
    explain_decision,
    format_result,
    protected_slices,
    release_verdicts,
)
from pipelines.publishing.same_queries import SameQueries
from recsys.data.batch import Jagged
from serving.bundle.manifest import Verdict

CONFIG = ReleaseConfig()
NUM_USERS = 4_000


def queries(champion: np.ndarray, challenger: np.ndarray, ahead: float = 0.0) -> SameQueries:
    """One held-out item a user; every fourth user is new, items 1 to 40 are equally frequent."""
    num_users = len(champion)
    return SameQueries(
        champion=Jagged.one_each(torch.from_numpy(champion)),
        challenger=Jagged.one_each(torch.from_numpy(challenger)),
        targets=Jagged.one_each(1 + torch.arange(num_users) % 40),
        num_events=np.where(np.arange(num_users) % 4 == 0, 1, 30),
        times=np.arange(num_users) * 60,
        by_bundle=ahead > 0,
        ahead=ahead,
    )


def ranks(share_first: float, seed: int, num_users: int = NUM_USERS) -> np.ndarray:
    """Ranks that are 1 for a share of users and beyond the list for the others."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(num_users) < share_first, 1, 0).astype(np.int64)


def compared(asked: SameQueries, config: ReleaseConfig = CONFIG) -> Compared:
    return compare(asked, protected_slices(asked, torch.full((41,), 100)), config)


def judged(champion: np.ndarray, challenger: np.ndarray, config: ReleaseConfig) -> list[Verdict]:
    found = compared(queries(champion, challenger), config)
    verdicts = comparison_verdicts(found, config)
    return [one for one in verdicts if one.name != "protected slices"]


def test_worse_challenger_is_refused_and_the_verdict_names_what_was_found() -> None:
    before = ranks(0.5, 0)
    # Every tenth hit is lost: -10% relative.
    after = before * (np.random.default_rng(1).random(NUM_USERS) < 0.9)
    verdict, *slices = judged(before, after, CONFIG)
    assert not verdict.passed
    assert verdict.value == pytest.approx(after.sum() / before.sum() - 1)
    assert verdict.bound == -0.02
    assert verdict.reason.startswith("worse: -1")
    for part in (
        "at 96%",
        "ndcg@10",
        "4000 users",
        "the smallest difference these users reliably show is",
    ):
        assert part in verdict.reason
    # The loss is the same everywhere, and no slice shows more than a tenth.
    assert not slices
    (exchanged,) = judged(after, before, CONFIG)
    assert exchanged.passed
    assert exchanged.reason.startswith("better: +")


@pytest.mark.parametrize(("default", "passed"), [("release", True), ("keep", False)])
def test_neither_is_shown_and_the_default_decides(default: str, passed: bool) -> None:
    config = ReleaseConfig(when_undecided=default)
    (verdict,) = judged(ranks(0.3, 0), ranks(0.3, 1), config)
    assert verdict.reason.startswith("not enough evidence: ")
    assert f"release.when_undecided = '{default}'" in verdict.reason
    assert verdict.passed == passed


def test_equal_lists_are_published_by_either_default() -> None:
    same = ranks(0.3, 0)
    (verdict,) = judged(same, same, ReleaseConfig(when_undecided="keep"))
    assert verdict.passed
    assert verdict.value == 0
    assert "not worse by more than the margin" in verdict.reason


def test_shown_loss_within_the_margin_is_tolerated() -> None:
    before = ranks(0.9, 0)
    after = before * (np.random.default_rng(1).random(NUM_USERS) < 0.97)
    assert not judged(before, after, CONFIG)[0].passed
    tolerant = judged(before, after, replace(CONFIG, max_loss=0.05))
    assert tolerant[0].passed
    assert "a loss of more than 5% is excluded" in tolerant[0].reason


def test_protected_slice_that_loses_is_refused_though_the_whole_gains() -> None:
    before = ranks(0.5, 0)
    new = np.arange(NUM_USERS) % 4 == 0
    after = np.where(new, before * (np.random.default_rng(1).random(NUM_USERS) < 0.6), 1)
    whole, harmed = judged(before, after, CONFIG)
    assert whole.passed
    assert harmed.name == "ndcg@50 of user_activity new against the champion"
    assert not harmed.passed
    assert harmed.value == pytest.approx(-0.4, abs=0.05)
    assert harmed.bound == -0.1


def test_too_few_queries_are_no_evidence_whatever_they_say() -> None:
    few = ranks(1.0, 0, 199), ranks(0.0, 0, 199)
    (verdict,) = judged(*few, CONFIG)
    assert verdict.passed
    assert (verdict.value, verdict.bound) == (None, None)
    assert "both answered 199 queries" in verdict.reason
    assert format_result(verdict.model_dump()) == "not tested"
    words = explain_decision("v1", [verdict], None)
    assert words[0] == "0 checks passed, 1 was not tested."
    assert "Not compared with v1: not enough evidence: both answered 199" in words[1]
    assert not judged(*few, replace(CONFIG, when_undecided="keep"))[0].passed
    assert not judged(*few, replace(CONFIG, min_compared=100))[0].passed


def test_champion_that_learned_from_more_events_is_no_reason_to_refuse() -> None:
    better = ranks(0.5, 0)
    worse = better * (np.random.default_rng(1).random(NUM_USERS) < 0.7)
    (verdict,) = comparison_verdicts(compared(queries(better, worse, 0.2)), CONFIG)
    assert verdict.passed
    assert verdict.reason.startswith("not enough evidence: -")
    assert "with 20% more events to learn from, so a loss says nothing" in verdict.reason
    # Then what the champion had on its own data is the safety net, as with too few queries.
    metrics = {"blend": {"ndcg@10": 0.1}, "popularity": {"ndcg@10": 0.01}}
    before = {"blend": {"ndcg@10": 0.2}}
    for ahead, failed in ((0.2, ["ndcg@10 against the champion's on its own data"]), (0.0, [])):
        found = compared(queries(worse, better, ahead))
        checks = release_verdicts(metrics, None, before, CONFIG, found)
        assert [one.name for one in checks if not one.passed] == failed
    # What is better all the same is better.
    (verdict,) = comparison_verdicts(compared(queries(worse, better, 0.2)), CONFIG)
    assert verdict.reason.startswith("better: +")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_loss": 1.5}, r"max_loss must be in \[0, 1\]"),
        ({"min_compared": 1}, "min_compared"),
        ({"deciding_metric": "auc"}, "metric must be one of"),
        ({"gate": {"min_kept_items": 2}}, r"gate.min_kept_items must be in \[0, 1\], got 2"),
        ({"gate": {"num_queries": 0}}, "gate.num_queries must be >= 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(ReleaseConfig, setting, "shop.toml")
