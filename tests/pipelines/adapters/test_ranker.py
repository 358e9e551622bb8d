"""An adapter of a ranker on planted users: books' take the highest number, films' the lowest."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.adapters.gate import judge_adapter
from pipelines.adapters.ranker import ranked_by_domain, train_adapter
from pipelines.adapters.task import DomainQueries, Domains, Judged, Task
from pipelines.presets import PRESETS
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import HeldOut
from recsys.layers.lora.linear import digest_of_weights
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training.optim import ScheduleConfig
from recsys.training.ranking_examples import RankingExamples

NUM_ITEMS, NUM_CANDIDATES = 40, 40
NAMES = ("books", "films")


def ranker():
    torch.manual_seed(0)
    config = RankerConfig(
        embedding_dim=16, key_dim=4, max_history=4, hidden_dim=16, num_experts=4, head_dim=8,
        router="sigmoid", tile_rows=64, backend="torch",
    )  # fmt: skip
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS + 1, tasks=("next",), candidate_dense=("score", "noise")
    )
    return Ranker(config, inputs, ItemCatalogue.empty(NUM_ITEMS + 1)).eval()


def people(counts, seed):
    """Users of each domain with their candidates; what they took stands anywhere."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    domains = np.repeat([0, 1], counts)
    noise = torch.rand(total, NUM_CANDIDATES, generator=generator)
    rows = noise.argsort(1)[:, :NUM_CANDIDATES] + 1
    numbers = torch.randn(total, NUM_CANDIDATES, 2, generator=generator)
    sign = torch.from_numpy(np.where(domains == 0, 1.0, -1.0)).float()
    place = (numbers[:, :, 0] * sign[:, None]).argmax(1)
    labels = torch.nn.functional.one_hot(place, NUM_CANDIDATES).float()[:, :, None]
    each = Jagged.one_each(rows.gather(1, place[:, None])[:, 0])
    features = {"history": Jagged.one_each(rows[:, 0]), "user": Jagged.one_each(place)}
    queries = DomainQueries(
        domain=0,
        names=NAMES,
        held_out=HeldOut(positions=np.arange(total), targets=each, seen=each),
        domain_of_query=domains,
        num_events=torch.full((total,), 20),
        item_counts=torch.ones(NUM_ITEMS + 1, dtype=torch.int64),
    )
    candidates = Candidates(rows, numbers)
    return queries, RankingExamples(JaggedBatch(features), each, candidates, labels)


def task():
    shop = PRESETS["shop"]()
    adapting = replace(
        shop.adapter,
        rank=4,
        batch_size=16,
        max_epochs=15.0,
        max_share=1.0,
        schedule=ScheduleConfig(learning_rate=2e-2),
        patience=20,
    )
    return Task(
        config=replace(shop, adapter=adapting, device="cpu"),
        inputs=None,
        domains=Domains(names=NAMES, of_item=np.zeros(NUM_ITEMS + 1, np.int64)),
        domain=0,
        base="ranker",
        order="given",
        show_progress=False,
    )


def test_an_adapter_learns_its_domains_order_and_no_other_list_moves():
    model = ranker()
    digest = digest_of_weights(model)
    _, examples = people((120, 0), seed=1)
    adapter, best_step, num_users = train_adapter(task(), model, examples)
    assert best_step > 0
    assert num_users == 96
    # The base is as it was, to the biases of its router.
    assert digest_of_weights(model) == digest == adapter.base_digest
    judging, seen = people((60, 60), seed=2)
    base = ranked_by_domain(model, judging, seen, {})
    adapted = ranked_by_domain(model, judging, seen, {"books": adapter})
    before, after = (result.per_user("ndcg@10") for result in (base, adapted))
    assert float(after[:60].mean()) > float(before[:60].mean()) + 0.3
    assert torch.equal(after[60:], before[60:])
    within = torch.ones(NUM_ITEMS + 1, dtype=torch.bool)
    own = [ranked_by_domain(model, judging, seen, one, within) for one in ({}, {"books": adapter})]
    # Where every candidate is of the domain, its name is worth nothing.
    assert torch.equal(own[1].per_user("ndcg@10"), after[:60])
    verdicts = judge_adapter(Judged(judging, base, adapted, *own), task().config.adapter).verdicts
    assert {one.name for one in verdicts} >= {
        "ndcg@10 of domain books",
        "lists of domain films unchanged",
    }
    assert all(one.passed for one in verdicts)


def test_a_domain_of_too_few_users_is_refused_in_words():
    _, examples = people((9, 0), seed=1)
    with pytest.raises(ValueError, match="'books' has 7 held-out users to learn from"):
        train_adapter(task(), ranker(), examples)
