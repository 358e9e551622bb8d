"""The harm gate on planted ranks: who gains, who loses, and what is chance."""

import numpy as np
import torch
from torch import Tensor

from pipelines.adapters.gate import Judgement, judge_adapter
from pipelines.adapters.task import DomainQueries, Judged
from pipelines.config.trainings import AdapterConfig
from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingResult

NUM_USERS = 200
EACH = Jagged.one_each(torch.ones(NUM_USERS, dtype=torch.int64))
BEFORE = torch.full((NUM_USERS,), 4)
NEW = "ndcg@10 of user_activity new"


def ranked(ranks: Tensor) -> RankingResult:
    return RankingResult(
        metrics={},
        num_users=NUM_USERS,
        user_rows=torch.arange(NUM_USERS),
        targets=EACH,
        ranks=EACH._replace(values=ranks),
        top_k=TopK(torch.zeros(NUM_USERS, 2), torch.full((NUM_USERS, 2), 7)),
    )


def judge(
    before: Tensor, after: Tensor, *, within: Tensor | None = None, **config: float
) -> Judgement:
    """Users of books, every fourth of them new; ``within`` is the base's over books alone."""
    queries = DomainQueries(
        held_out=HeldOut(positions=np.arange(NUM_USERS), targets=EACH, seen=EACH),
        num_events=torch.where(torch.arange(NUM_USERS) % 4 == 0, 2, 20),
        item_counts=torch.tensor([0, 5]),
    )
    base_within = ranked(before if within is None else within)
    judged = Judged(queries, ranked(before), ranked(after), base_within, ranked(after))
    return judge_adapter(judged, "books", AdapterConfig(**config))


def failed(found: Judgement) -> list[str]:
    return [one.name for one in found.verdicts if not one.passed]


def test_what_helps_everybody_passes():
    found = judge(BEFORE, torch.ones_like(BEFORE))
    assert {one.name for one in found.verdicts} == {
        "ndcg@10 of domain books",
        NEW,
        "ndcg@10 of user_activity heavy",
        "ndcg@10 of item_popularity head",
    }
    assert failed(found) == []
    assert found.metrics["adapter"] == {"ndcg@10": 1.0}
    assert abs(found.metrics["base"]["ndcg@10"] - 1 / np.log2(5)) < 1e-12


def test_a_slice_that_pays_for_the_others_is_protected():
    after = torch.ones_like(BEFORE)
    after[::4] = 9
    assert failed(judge(BEFORE, after)) == [NEW]
    assert "ndcg@10 of domain books" in failed(judge(BEFORE, BEFORE)), "no gain at all"
    lower = BEFORE.clone()
    lower[::4], lower[1::4] = 5, 1
    assert failed(judge(BEFORE, lower)) == [NEW]
    assert failed(judge(BEFORE, lower, max_drop=0.2)) == [], "a tolerated drop"


def test_chance_in_a_slice_is_not_harm():
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(1, 20, (NUM_USERS,), generator=generator)
    after = before[torch.randperm(NUM_USERS, generator=generator)]
    assert not {NEW, "ndcg@10 of user_activity heavy"} & {*failed(judge(before, after))}


def test_listing_the_domains_items_alone_is_the_bases_and_no_gain_of_an_adapter():
    whole, within = torch.full((NUM_USERS,), 9), torch.full((NUM_USERS,), 2)
    found = judge(whole, within, within=within)
    gain = found.verdicts[0]
    assert not gain.passed
    assert gain.value == gain.bound
    assert "the adapter adds +0.0000" in gain.reason
    assert f"over the whole catalogue the base has {1 / np.log2(10):.4f}" in gain.reason
    assert found.metrics["base_within_domain"] == found.metrics["adapter_within_domain"]
    assert found.metrics["base"]["ndcg@10"] < found.metrics["adapter"]["ndcg@10"]
