from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.config.operation import ReleaseConfig
from pipelines.config.toml import validate
from pipelines.publishing.comparison import (
    Compared,
    compare,
    comparison_verdicts,
    explain_decision,
    format_result,
    found_in,
    item_domains,
    metric_value,
    protected_slices,
    ranked_gain,
    release_verdicts,
    served_metrics,
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


def test_worse_challenger_is_refused_and_the_verdict_names_what_was_found():
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
def test_neither_is_shown_and_the_default_decides(default, passed):
    config = ReleaseConfig(when_undecided=default)
    (verdict,) = judged(ranks(0.3, 0), ranks(0.3, 1), config)
    assert verdict.reason.startswith("not enough evidence: ")
    assert f"release.when_undecided = '{default}'" in verdict.reason
    assert verdict.passed == passed


def test_equal_lists_are_published_by_either_default():
    same = ranks(0.3, 0)
    (verdict,) = judged(same, same, ReleaseConfig(when_undecided="keep"))
    assert verdict.passed
    assert verdict.value == 0
    assert "not worse by more than the margin" in verdict.reason


def test_shown_loss_within_the_margin_is_tolerated():
    before = ranks(0.9, 0)
    after = before * (np.random.default_rng(1).random(NUM_USERS) < 0.97)
    assert not judged(before, after, CONFIG)[0].passed
    tolerant = judged(before, after, replace(CONFIG, max_loss=0.05))
    assert tolerant[0].passed
    assert "a loss of more than 5% is excluded" in tolerant[0].reason


def test_protected_slice_that_loses_is_refused_though_the_whole_gains():
    before = ranks(0.5, 0)
    new = np.arange(NUM_USERS) % 4 == 0
    after = np.where(new, before * (np.random.default_rng(1).random(NUM_USERS) < 0.6), 1)
    whole, harmed = judged(before, after, CONFIG)
    assert whole.passed
    assert harmed.name == "ndcg@50 of user_activity new against the champion"
    assert not harmed.passed
    assert harmed.value == pytest.approx(-0.4, abs=0.05)
    assert harmed.bound == -0.1


def test_too_few_queries_are_no_evidence_whatever_they_say():
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


def test_champion_that_learned_from_more_events_is_no_reason_to_refuse():
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


def test_a_loss_in_the_first_places_refuses_though_the_whole_list_gains():
    before = ranks(0.3, 0)
    after = np.where(before == 1, 3, 15)
    whole, first = judged(before, after, CONFIG)
    assert whole.reason.startswith("better: +")
    assert (first.name, first.passed) == ("ndcg@10 against the champion in the first places", False)


def test_domains_are_protected_and_a_catalogue_without_them_has_none():
    domains = [("books", "games")[row % 2] for row in range(1, 40)] + [None]
    items = pl.DataFrame({"item_row": range(1, 41), "domain": domains})
    asked = queries(ranks(0.5, 0), ranks(0.5, 1))
    slices = protected_slices(asked, torch.full((41,), 100), item_domains(items))
    assert slices["domain games"].sum() == NUM_USERS / 2
    assert slices["domain books"].sum() == NUM_USERS * 19 / 40
    assert item_domains(items.drop("domain")) == []


def test_a_decision_is_explained_with_what_was_compared():
    before = ranks(0.5, 0)
    after = before * (np.random.default_rng(1).random(NUM_USERS) < 0.9)
    worse, better = compared(queries(before, after)), compared(queries(after, before))
    assert (worse.decision, worse.shows_losses, better.decision) == ("worse", True, "better")
    refused = explain_decision("v1", comparison_verdicts(worse, CONFIG), worse)
    assert refused[0].endswith("checks failed; v1 goes on serving.")
    assert refused[1].startswith("ndcg@50 against the champion on the same queries: -0.1")
    told = explain_decision("v1", comparison_verdicts(better, CONFIG), better)
    assert told[1].startswith(f"Against v1 on {NUM_USERS} equal queries: better, +1")
    assert explain_decision("v1", [], None)[1].startswith("Not compared with v1: too few")
    assert len(explain_decision(None, [], None)) == 1
    assert (found_in(None, None), found_in(None, 1.0)) == (
        "nothing was found",
        "no value against 1",
    )


def test_what_is_checked_is_what_is_served_and_measured(tmp_path):
    metrics = {"blend_fast": {"ndcg@10": 0.1}, "ranked": {"ndcg@10": 0.2}}
    assert set(served_metrics(metrics, tmp_path)) == {"blend_fast"}
    (tmp_path / "ranker.json").write_text('{"served": true}')
    assert served_metrics(metrics, tmp_path) == metrics
    answers = pl.DataFrame({"rank": [1] * 200})
    assert ranked_gain(metrics, "ndcg@10", answers) == (0.2, 0.1)
    for few in (None, answers.head(199)):
        assert ranked_gain(metrics, "ndcg@10", few) == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"'ndcg@7' was not measured; it must be one of ndcg@10"):
        metric_value(metrics, "ranked", "ndcg@7")


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
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        validate(ReleaseConfig, setting, "shop.toml")
