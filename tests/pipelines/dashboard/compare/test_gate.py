"""The answer of the gate on a pair: the recorded one, and that of its rule."""

import numpy as np
import polars as pl
import pytest

from pipelines.config.operation import ReleaseConfig
from pipelines.dashboard.compare.gate import judge_pair, recorded_answer
from pipelines.dashboard.data.answers import Measures
from pipelines.dashboard.data.pairs import Pairs
from pipelines.dashboard.data.slices import Slices
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.engine.decisions import Decision, append_decision
from tests.pipelines.dashboard.synthetic_runs import write_bundle, write_run

NUM_USERS = 4000


@pytest.fixture(scope="module")
def equals() -> Pairs:
    """Sides that differ by chance alone, in two halves."""
    shared = np.random.default_rng(1).normal(3.6, 1.3, NUM_USERS)
    own = [np.random.default_rng(seed).normal(0, 0.5, NUM_USERS) for seed in (2, 3)]
    exact = np.ceil(np.exp(shared + own))
    first, second = np.where(exact <= 100, exact, 0).astype(np.uint8)
    users = [f"{user:05}" for user in range(NUM_USERS)]
    known = {"user_id": users, "item_row": 1, "place": 9, "time": None}
    queries = pl.DataFrame({**known, "rank0": first, "rank1": second})
    pairs = Pairs(sides=(), queries=queries, num_answered=(0, 0), features=None)
    half = np.arange(NUM_USERS) % 2 == 0
    pairs.__dict__["slices"] = Slices({"half": {"even": half, "odd": ~half}})
    return pairs


def covering(share: float) -> Measures:
    return Measures(beyond_accuracy={"coverage@10": share})


@pytest.mark.parametrize(
    ("before", "after", "answer", "words"),
    [
        (covering(0.6), covering(0.2), "first", "much less of the catalogue"),
        (covering(0.2), covering(0.6), "second", "much more of the catalogue"),
        (covering(0.6), covering(0.5), "no evidence", ""),
        (covering(0.6), Measures(), "no evidence", ""),
        (Measures(), covering(0.1), "no evidence", ""),
    ],
)
def test_a_large_difference_in_coverage_decides_between_equals(
    equals, before, after, answer, words
):
    found = judge_pair(equals, (before, after), ReleaseConfig())
    assert found.answer == answer
    assert words in " ".join(one.words for one in found.reasons if one.speaks_for == answer)


def test_the_recorded_answer_has_its_interval_margin_and_the_slices_that_lost(tmp_path):
    write_run(tmp_path / "shop")
    bundles = tmp_path / "shop" / "bundles"
    for version in ("v1", "v2", "v3"):
        write_bundle(bundles, version)
    whole = "ndcg@50 against the champion on the same queries"
    checks = (
        (whole, -0.02, True, "better: +3.1% (+1.0% to +5.2%)"),
        ("ndcg@50 of domain books against the champion", -0.1, False, "-20.0% is shown"),
        ("size", 2.0, True, "of the champion's"),
    )
    decision = Decision(
        outcome="refused",
        challenger="v2",
        champion="v1+3",
        challenger_digest=None,
        words=["Refused."],
        verdicts=[
            {"name": name, "value": 0.0, "bound": bound, "passed": passed, "reason": reason}
            for name, bound, passed, reason in checks
        ],
    )
    append_decision(bundles, decision, None)
    runs = {run.name: run for run in Stores(Places(roots=[tmp_path])).bundles()}
    assert recorded_answer(runs["v1"], runs["v2"]) == (
        f"The release gate decided on this pair: B was refused: Refused.; {whole}: better: +3.1% "
        "(+1.0% to +5.2%) (margin -2.0%); ndcg@50 of domain books against the champion: -20.0% is "
        "shown (margin -10.0%)"
    )
    # It has decided nothing on v2 in place of v3, nor on v3.
    assert recorded_answer(runs["v3"], runs["v2"]) == ""
    assert recorded_answer(runs["v1"], runs["v3"]) == ""
