"""The harm gate on planted ranks: who gains, who loses, and what is chance."""

import numpy as np
import torch

from pipelines.adapters.gate import judge_adapter
from pipelines.adapters.task import DomainQueries, Judged
from pipelines.config.trainings import AdapterConfig
from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingResult

NUM_OWN, NUM_OTHER = 200, 50
CONFIG = AdapterConfig()


def queries() -> DomainQueries:
    """200 users of books, every fourth of them new; 50 of films."""
    num = NUM_OWN + NUM_OTHER
    each = Jagged.one_each(torch.ones(num, dtype=torch.int64))
    return DomainQueries(
        domain=0,
        names=("books", "films"),
        held_out=HeldOut(positions=np.arange(num), targets=each, seen=each),
        domain_of_query=np.repeat([0, 1], [NUM_OWN, NUM_OTHER]),
        num_events=torch.where(torch.arange(num) % 4 == 0, 2, 20),
        item_counts=torch.tensor([0, 5]),
    )


def ranked(ranks: torch.Tensor, *, films: int = 3) -> RankingResult:
    num = len(ranks)
    rows = torch.full((num, 2), 7)
    rows[NUM_OWN:] = films
    each = Jagged.one_each(torch.ones(num, dtype=torch.int64))
    return RankingResult(
        metrics={},
        num_users=num,
        user_rows=torch.arange(num),
        targets=each,
        ranks=each._replace(values=ranks),
        top_k=TopK(torch.zeros(num, 2), rows),
    )


def own(ranks: torch.Tensor) -> RankingResult:
    """The domain's queries alone."""
    each = Jagged.one_each(torch.ones(NUM_OWN, dtype=torch.int64))
    whole = ranked(ranks)
    return whole._replace(
        num_users=NUM_OWN,
        user_rows=torch.arange(NUM_OWN),
        targets=each,
        ranks=each._replace(values=ranks[:NUM_OWN]),
        top_k=TopK(*(part[:NUM_OWN] for part in whole.top_k)),
    )


def judged(before: torch.Tensor, after: torch.Tensor, **films: int) -> Judged:
    """Ranks over the domain's items alone are those over the whole catalogue."""
    whole = ranked(before), ranked(after, **films)
    return Judged(queries(), *whole, own(before), own(after))


def verdicts(before: torch.Tensor, after: torch.Tensor, **films: int) -> dict[str, bool]:
    found = judge_adapter(judged(before, after, **films), CONFIG).verdicts
    return {one.name: one.passed for one in found}


def test_what_helps_everybody_passes() -> None:
    before = torch.full((NUM_OWN + NUM_OTHER,), 4)
    after = before.clone()
    after[:NUM_OWN] = 1
    found = verdicts(before, after)
    assert found == {
        "ndcg@10 of domain books": True,
        "ndcg@10 of user_activity new": True,
        "ndcg@10 of user_activity heavy": True,
        "ndcg@10 of item_popularity head": True,
        "lists of domain films unchanged": True,
    }
    reported = judge_adapter(judged(before, after), CONFIG).metrics
    assert reported["adapter"] == {"ndcg@10": 1.0}
    assert abs(reported["base"]["ndcg@10"] - 1 / np.log2(5)) < 1e-12


def test_a_slice_that_pays_for_the_others_is_protected() -> None:
    before = torch.full((NUM_OWN + NUM_OTHER,), 4)
    after = before.clone()
    after[:NUM_OWN] = 1
    after[:NUM_OWN:4] = 9
    found = verdicts(before, after)
    assert not found["ndcg@10 of user_activity new"]
    assert [name for name, passed in found.items() if not passed] == [
        "ndcg@10 of user_activity new"
    ]


def test_no_gain_at_all_is_refused_and_a_tolerated_drop_is_let_pass() -> None:
    before = torch.full((NUM_OWN + NUM_OTHER,), 4)
    assert not verdicts(before, before)["ndcg@10 of domain books"]
    lower = before.clone()
    lower[:NUM_OWN:4] = 5
    lower[1:NUM_OWN:4] = 1
    assert not verdicts(before, lower)["ndcg@10 of user_activity new"]
    lenient = AdapterConfig(max_drop=0.2)
    found = judge_adapter(judged(before, lower), lenient).verdicts
    assert all(one.passed for one in found)


def test_chance_in_a_slice_is_not_harm() -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(1, 20, (NUM_OWN + NUM_OTHER,), generator=generator)
    after = before[torch.randperm(len(before), generator=generator)]
    found = verdicts(before, after)
    assert found["ndcg@10 of user_activity new"]
    assert found["ndcg@10 of user_activity heavy"]


def test_another_domain_that_gets_other_lists_is_harm() -> None:
    before = torch.full((NUM_OWN + NUM_OTHER,), 4)
    after = before.clone()
    after[:NUM_OWN] = 1
    assert not verdicts(before, after, films=8)["lists of domain films unchanged"]


def test_listing_the_domains_items_alone_is_the_bases_and_no_gain_of_an_adapter() -> None:
    whole = torch.full((NUM_OWN + NUM_OTHER,), 9)
    within = torch.full((NUM_OWN + NUM_OTHER,), 2)
    # The adapter lists the domain's items and orders them as the base does.
    found = Judged(queries(), ranked(whole), ranked(within), own(within), own(within))
    gain = judge_adapter(found, CONFIG).verdicts[0]
    assert not gain.passed
    assert gain.value == gain.bound
    assert "the adapter adds +0.0000" in gain.reason
    assert f"over the whole catalogue the base has {1 / np.log2(10):.4f}" in gain.reason
    reported = judge_adapter(found, CONFIG).metrics
    assert reported["base_within_domain"] == reported["adapter_within_domain"]
    assert reported["base"]["ndcg@10"] < reported["adapter"]["ndcg@10"]
