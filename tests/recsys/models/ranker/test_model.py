from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import RankingBatch
from tests.recsys.testing.catalogues import drawn_catalogue
from tests.recsys.testing.refusals import assert_refused

TRUNKS = ("sparse", "dense")
INPUTS = RankerInputs(
    num_item_rows=30,
    tasks=("click", "purchase"),
    content_dim=6,
    num_categories=5,
    user_features={"segment": 4},
    context_features={"hour": 7},
    candidate_dense=("price", "score"),
)
CONFIG = RankerConfig(
    trunk="sparse",
    embedding_dim=8,
    key_dim=4,
    max_history=6,
    hidden_dim=16,
    num_experts=4,
    head_dim=8,
    tile_rows=32,
    backend="torch",
)


CATALOGUE = drawn_catalogue(30, 6, 4, seed=1)


def ranker(config: RankerConfig = CONFIG, inputs: RankerInputs = INPUTS) -> Ranker:
    torch.manual_seed(0)
    return Ranker(config, inputs, CATALOGUE).eval()


def batch_of(sizes: list[int], seed: int = 2) -> RankingBatch:
    generator = torch.Generator().manual_seed(seed)

    def rows(count: int, below: int) -> list[int]:
        return torch.randint(1, below, (count,), generator=generator).tolist()

    queries = JaggedBatch(
        {
            "history": Jagged.from_lists([rows(place * 3, 30) for place in range(len(sizes))]),
            "user.segment": Jagged.from_lists([rows(1, 4) for _ in sizes]),
            "context.hour": Jagged.from_lists([rows(1, 7) for _ in sizes]),
        }
    )
    candidates = Jagged.from_lists([rows(size, 30) for size in sizes])
    return RankingBatch(queries, candidates, torch.randn(sum(sizes), 2, generator=generator))


def only(batch: RankingBatch, query: int) -> RankingBatch:
    """Cut one query out of a batch."""
    number = torch.tensor([query])
    begin, end = batch.candidates.offsets[query], batch.candidates.offsets[query + 1]
    return RankingBatch(
        JaggedBatch({name: value.take(number) for name, value in batch.queries.features.items()}),
        batch.candidates.take(number),
        batch.candidate_dense[begin:end],
    )


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_score_has_the_same_bits_alone_and_among_others(trunk):
    model = ranker(replace(CONFIG, trunk=trunk))
    batch = batch_of([5, 0, 19, 8])
    together = model.score(batch).split([5, 0, 19, 8])
    for query in range(4):
        assert torch.equal(model.score(only(batch, query)), together[query])
    alone = only(batch, 2)
    for place in (18, 3, 0):
        single = alone._replace(
            candidates=Jagged.one_each(alone.candidates.values[place : place + 1]),
            candidate_dense=alone.candidate_dense[place : place + 1],
        )
        assert torch.equal(model.score(single), together[2][place : place + 1])


@pytest.mark.parametrize("trunk", TRUNKS)
def test_saved_and_loaded_scores_are_the_same(trunk, tmp_path: Path):
    model = ranker(replace(CONFIG, trunk=trunk, task_values={"purchase": 5.0}))
    batch = batch_of([5, 7])
    labels = torch.randint(0, 2, (12, 2)).float()
    labels[:2] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    model.fit_calibration(model.logits(batch) * 0 + labels + torch.randn(12, 2), labels)
    model.save(tmp_path / "one")
    loaded = Ranker.load(tmp_path / "one", CATALOGUE)
    assert torch.equal(loaded.score(batch), model.score(batch))
    loaded.save(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_items_added_later_are_ranked_by_content():
    model = ranker()
    grown = Ranker(CONFIG, INPUTS, drawn_catalogue(33, 6, 4, seed=1)).eval()
    grown.load_state_dict(model.state_dict())
    batch = batch_of([4])
    changed = batch._replace(candidates=Jagged.from_lists([[30, 31, 32, 99]]))
    scores = grown.score(changed)
    assert len(scores[:3].unique()) == 3
    unknown = grown.score(batch._replace(candidates=Jagged.from_lists([[0, 0, 0, 0]])))
    assert torch.equal(scores[3], unknown[3])


@pytest.mark.parametrize("trunk", TRUNKS)
def test_training_learns_who_likes_what(trunk):
    """Segment s clicks items of category s and purchases those of the next."""
    torch.manual_seed(3)
    model = ranker(replace(CONFIG, trunk=trunk)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(61):
        batch = batch_of([8] * 16, seed=step)
        segment = batch.queries["user.segment"].values.repeat_interleave(8)
        category = (batch.candidates.values - 1) % 4
        labels = torch.stack([category == segment, category == (segment + 1) % 4], 1).float()
        labels[0] = torch.nan
        loss = model.loss_of(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    chances = model.calibrated(model.logits(batch))
    right = labels[1:].bool()
    assert losses[-1] < losses[0]
    assert float(chances[1:][right].mean()) > float(chances[1:][~right].mean()) + 0.4


def test_the_score_is_the_sum_of_values_and_chances():
    config = replace(CONFIG, task_values={"click": 0.5, "purchase": 2.0})
    model, chances = ranker(config), torch.tensor([[0.2, 0.3], [0.4, 0.1]])
    torch.testing.assert_close(model.combined(chances), torch.tensor([0.7, 0.4]))


def test_bad_input_is_named():
    model, batch = ranker(), batch_of([3, 2])
    spoiled = batch.candidate_dense.clone()
    spoiled[4, 1] = torch.nan
    logits, labels = model.logits(batch), torch.tensor([[0.0, 0], [1, 0], [0, 0], [1, 0], [1, 0]])

    def scoring(**change):
        return lambda: model.score(batch._replace(**change))

    assert_refused(
        {
            "column 'score' is nan in row 4": scoring(candidate_dense=spoiled),
            "'purchase' has 0 positive of 5": lambda: model.fit_calibration(logits, labels),
            r"task_values names \['view'\]": lambda: ranker(
                replace(CONFIG, task_values={"view": 1.0})
            ),
        }
    )


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_share_of_a_correction_is_between_the_base_score_and_the_whole(trunk):
    model = ranker(replace(CONFIG, trunk=trunk), replace(INPUTS, base_feature="score"))
    with torch.no_grad():
        for part in (model.correction, *model.heads.linear(2)):
            part.weight.normal_()
            part.bias.normal_()
    batch = batch_of([5, 0, 19])
    base, whole = batch.candidate_dense[:, 1:], model.logits(batch)
    for share in (0.0, 0.25, 1.0):
        expected = base + share * (whole - base)
        found = model.with_share(share).logits(batch)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.logits(batch), whole)
