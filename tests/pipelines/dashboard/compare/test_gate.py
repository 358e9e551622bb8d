"""The answer of the gate on a pair: the recorded one, and that of its rule."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.release import ReleaseConfig
from pipelines.dashboard.compare.gate import PairJudgement, judge_pair, recorded_answer
from pipelines.dashboard.data.measures import Measures
from pipelines.dashboard.data.pairs import Pairs
from pipelines.dashboard.data.slices import Slices
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.engine.decisions import Decision, append_decision
from tests.pipelines.dashboard.synthetic_runs import write_bundle, write_run

NUM_USERS = 4000


def ranks_of(seed: int, moved: np.ndarray | float = 0.0) -> np.ndarray:
    """Ranks whose logarithms are moved; above 0 is worse."""
    shared = np.random.default_rng(1).normal(3.6, 1.3, NUM_USERS)
    exact = np.ceil(np.exp(shared + np.random.default_rng(seed).normal(0, 0.5, NUM_USERS) + moved))
    found: np.ndarray = np.where(exact <= 100, exact, 0).astype(np.uint8)
    return found


def join_pairs(first: np.ndarray, second: np.ndarray) -> Pairs:
    """Sides with slices of the test's own."""
    users = [f"{user:05}" for user in range(NUM_USERS)]
    known = {"user_id": users, "item_row": 1, "place": 9, "time": None}
    queries = pl.DataFrame({**known, "rank0": first, "rank1": second})
    pairs = Pairs(sides=(), queries=queries, num_answered=(0, 0), features=None, order="")
    single = {
        group: {f"{group}{code}": codes == code for code in range(codes.max() + 1)}
        for group, codes in HALVES.items()
    }
    pairs.__dict__["slices"] = Slices(single)
    return pairs


HALVES = {"half": np.arange(NUM_USERS) % 2, "tenth": np.arange(NUM_USERS) % 10}
NOTHING = (Measures(), Measures())


def judged(
    moved: np.ndarray | float,
    measures: tuple[Measures, Measures] = NOTHING,
    **settings: float,
) -> PairJudgement:
    """Judge a pair whose second side is moved; above 0 is worse."""
    pairs = join_pairs(ranks_of(2), ranks_of(3, moved))
    return judge_pair(pairs, measures, ReleaseConfig(**settings))


@pytest.mark.parametrize(
    ("tenths", "settings", "answer", "lost"),
    [
        ({3: 1.5}, {}, "first", ["tenth/tenth3"]),
        ({3: 1.2, 6: 2.5}, {}, "first", ["tenth/tenth6", "tenth/tenth3"]),
        ({3: 0.12}, {"max_slice_loss": 0.25}, "no evidence", []),
    ],
)
def test_slices_that_lose_more_than_the_margin_refuse_the_clearest_first(
    tenths: dict[int, float], settings: dict[str, float], answer: str, lost: list[str]
) -> None:
    moved = sum(np.where(HALVES["tenth"] == one, by, 0.0) for one, by in tenths.items())
    found = judged(moved, **settings)
    assert found.answer == answer
    named = [key for key in found.slices("first") if key.startswith("tenth")]
    assert named == lost


def test_a_ruined_slice_refuses_a_better_side() -> None:
    found = judged(np.where(HALVES["tenth"] == 3, 1.5, -0.4))
    assert found.answer == "first"
    assert found.slices("first") == ["tenth/tenth3"]
    assert ("second", "B is better over all queries") in [one[:2] for one in found.reasons]


def test_few_users_conclude_nothing() -> None:
    found = judged(-2.0, min_compared=NUM_USERS + 1, max_compared=NUM_USERS + 1)
    assert found.answer == "no evidence"
    assert f"{NUM_USERS:,}. Below {NUM_USERS + 1}" in found.reasons[0].words


def covering(share: float) -> Measures:
    return Measures(beyond_accuracy={"coverage@10": share})


def answering(milliseconds: float) -> Measures:
    return Measures(costs={"list_ms": milliseconds})


CHEAP = Measures({}, {"seconds": 100, "peak_memory": 10**9, "list_ms": 5.0}, "a")
DEAR = Measures({}, {"seconds": 400, "peak_memory": 10**9, "list_ms": 5.5}, "a")


@pytest.mark.parametrize(
    ("before", "after", "answer", "words"),
    [
        (CHEAP, DEAR, "first", "4.0 times more with B (1 min 40 s to 6 min 40 s)"),
        (CHEAP, DEAR._replace(host="b"), "no evidence", ""),
        (CHEAP, Measures(), "no evidence", ""),
        (
            Measures(costs={"list_ms": 5.0}),
            Measures(costs={"list_ms": 30.0}),
            "first",
            "time of a list is 6.0 times",
        ),
        (covering(0.6), covering(0.2), "first", "much less of the catalogue"),
        (covering(0.2), covering(0.6), "second", "much more of the catalogue"),
        (covering(0.6), covering(0.5), "no evidence", ""),
        (covering(0.6), Measures(), "no evidence", ""),
        (Measures(), covering(0.1), "no evidence", ""),
    ],
)
def test_large_differences_in_coverage_and_cost_decide_between_equals(
    before: Measures, after: Measures, answer: str, words: str
) -> None:
    found = judged(0.0, (before, after))
    assert found.answer == answer
    assert words in " ".join(one.words for one in found.reasons if one.speaks_for == answer)


def test_the_recorded_answer_has_its_interval_margin_and_the_slices_that_lost(
    tmp_path: Path,
) -> None:
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
