import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import ndcg_at_k
from recsys.retrieval.blend.config import LearnedBlendConfig
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES, Blended
from tests.recsys.retrieval.blend.plain_fusion import reciprocal_rank_fusion
from tests.recsys.testing.refusals import assert_refused

NUM_ITEMS, LENGTH = 400, 30


def source(targets: Tensor, skill: Tensor, generator: torch.Generator) -> TopK:
    """Lists [B, 30] with an item ahead: the target with probability ``skill`` [B], else any."""
    num_queries = len(targets)
    noise = torch.rand(num_queries, NUM_ITEMS, generator=generator)
    noise[:, 0] = -1
    lucky = torch.rand(num_queries, generator=generator) < skill
    other = torch.randint(1, NUM_ITEMS, (num_queries,), generator=generator)
    ahead = 1 + torch.rand(num_queries, 1, generator=generator)
    noise.scatter_(1, targets.where(lucky, other)[:, None], ahead)
    return TopK(*noise.topk(LENGTH, dim=1))


def two_worlds(num_queries: int, seed: int = 0) -> tuple[dict[str, TopK], Jagged, Tensor]:
    """Lists, targets, history lengths: "young" is right for short histories, "old" for long."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, NUM_ITEMS, (num_queries,), generator=generator)
    lengths = torch.randint(1, 21, (num_queries,), generator=generator)
    lists = {
        name: source(targets, torch.where(is_right, 0.9, 0.0), generator)
        for name, is_right in (("young", lengths < 10), ("old", lengths >= 10))
    }
    return lists, Jagged.one_each(targets), lengths


def ndcg(blended: Blended, targets: Jagged) -> float:
    hit = blended.item_rows == targets.values[:, None]
    ranks = torch.where(hit.any(1), hit.byte().argmax(1) + 1, 0)
    return float(ndcg_at_k(Jagged(ranks, targets.offsets), 10).mean())


def fused(lists: dict[str, TopK]) -> Blended:
    return reciprocal_rank_fusion({name: top.item_rows for name, top in lists.items()}, LENGTH)


def test_each_kind_of_user_trusts_the_source_that_is_right_for_it():
    config = LearnedBlendConfig(history_bounds=(10,), shrinkage_queries=30)
    lists, targets, lengths = two_worlds(2000)
    blend = LearnedBlend.fit(lists, targets, config, history_lengths=lengths)
    alike = LearnedBlend.fit(lists, targets)
    lists, targets, lengths = two_worlds(2000, seed=1)

    by_all = ndcg(alike.blend(lists, LENGTH), targets)
    best_alone = max(ndcg(fused({name: lists[name]}), targets) for name in lists)
    assert ndcg(blend.blend(lists, LENGTH, history_lengths=lengths), targets) > by_all + 0.05
    assert by_all > max(best_alone + 0.1, ndcg(fused(lists), targets))
    for users, right in ((lengths < 10, 0), (lengths >= 10, 1)):
        own = {name: TopK(*(part[users] for part in top)) for name, top in lists.items()}
        known = blend.blend(own, 2 * LENGTH, history_lengths=lengths[users])
        first = [
            known.contributions[..., s][known.source_ranks[..., s] == 1].mean() for s in (0, 1)
        ]
        assert first[right] > 1.4 * first[1 - right]
    # Unknown users get the weights of all.
    nobody = blend.blend(lists, 5, history_lengths=torch.full((2000,), -1))
    assert torch.equal(nobody.item_rows, alike.blend(lists, 5).item_rows)
    assert torch.equal(nobody.item_rows, blend.blend(lists, 5).item_rows)


def weighing(sources: tuple[str, ...], **weights: list[float]) -> LearnedBlend:
    """A blend whose named features have one weight per source."""
    table = torch.zeros(2, 2, len(sources), len(FEATURES))
    for name, by_source in weights.items():
        table[..., FEATURES.index(name)] = torch.tensor(by_source)
    return LearnedBlend(LearnedBlendConfig(), sources, table, torch.ones(len(sources)))


def test_a_missing_source_leaves_its_weight_to_the_others():
    blend = weighing(("a", "b", "silent"), presence=[1.0, 3.0, 0.0])
    top = TopK(torch.tensor([[2.0, 1.0]] * 2), torch.tensor([[5, 7], [5, 7]]))
    holes = TopK(torch.tensor([[2.0], [-torch.inf]]), torch.tensor([[7], [-1]]))
    assert blend.blend({"a": top}, 1).scores.tolist() == [[4], [4]]
    # Query 1 has nothing from b.
    blended = blend.blend({"a": top, "b": holes}, 2)
    assert blended.item_rows.tolist() == [[7, 5], [5, 7]]
    assert blended.scores.tolist() == [[4, 1], [4, 4]]
    # Alone, a source without weight still ranks by its own order.
    assert blend.blend({"silent": top}, 2).item_rows.tolist() == [[5, 7], [5, 7]]


def test_learns_from_a_sample_what_it_learns_from_all_candidates():
    lists, targets, _ = two_worlds(1500)
    small, full = (
        LearnedBlend.fit(lists, targets, LearnedBlendConfig(max_candidates=number))
        for number in (24, 60)
    )
    assert small.fitted.loss == pytest.approx(full.fitted.loss, rel=0.05)
    rankings = [ndcg(blend.blend(lists, LENGTH), targets) for blend in (small, full)]
    assert rankings[0] == pytest.approx(rankings[1], abs=0.01)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    lists, targets, lengths = two_worlds(200)
    config = LearnedBlendConfig(history_bounds=(5, 10), item_bounds=(0.5,), max_queries=100)
    asked = {"history_lengths": lengths, "item_values": torch.rand(NUM_ITEMS)}
    blend = LearnedBlend.fit(lists, targets, config, **asked)
    digest = blend.save(tmp_path)
    loaded = LearnedBlend.load(tmp_path, sha256=digest)
    assert (loaded.config, loaded.sources) == (blend.config, blend.sources)
    assert loaded.fitted == blend.fitted
    found, expected = (one.blend(lists, 9, **asked) for one in (loaded, blend))
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.equal(found.scores, expected.scores)
    assert loaded.save(tmp_path / "again") == digest
    weighing(("a",), presence=[2.0]).save(tmp_path)
    with pytest.raises(ValueError, match=digest):
        LearnedBlend.load(tmp_path, sha256=digest)


@pytest.mark.parametrize("part", ["learned_blend.json", "learned_blend.safetensors"])
def test_a_damaged_file_is_refused(tmp_path, part):
    weighing(("a",), presence=[1.0]).save(tmp_path)
    path = tmp_path / part
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (flipped, whole[:-9], b"", None):
        path.unlink() if content is None else path.write_bytes(content)
        assert_refused({"refused the blend": lambda: LearnedBlend.load(tmp_path)})


def test_bad_input_is_refused():
    lists, targets, lengths = two_worlds(20)
    blend = weighing(("young", "old"), presence=[1.0, 1.0])
    by_length = LearnedBlendConfig(history_bounds=(10,))
    by_item = LearnedBlendConfig(item_bounds=(1.0,))
    nothing, few = Jagged.from_lists([[]] * 20), Jagged.one_each(targets.values[1:])
    assert_refused(
        {
            "none of the 20 queries has a target": lambda: LearnedBlend.fit(lists, nothing),
            "history_lengths is not given": lambda: LearnedBlend.fit(lists, targets, by_length),
            "item_values is not given": lambda: LearnedBlend.fit(lists, targets, by_item),
            "has 3 queries, the lists have 20": lambda: LearnedBlend.fit(
                lists, targets, by_length, history_lengths=lengths[:3]
            ),
            "lists are of 20 queries, targets of 19": lambda: LearnedBlend.fit(lists, few),
            "no source to blend": lambda: LearnedBlend.fit({}, targets),
            r"sources \['new'\] have no weights": lambda: blend.blend({"new": lists["old"]}, 3),
            "must be >= 1, got 0": lambda: blend.blend(lists, 0),
            "scales must be finite": lambda: weighing(("a",), presence=[torch.nan]),
            r"weights must be \(2, 2, 1, 4\)": lambda: LearnedBlend(
                LearnedBlendConfig(), ("a",), torch.zeros(3), torch.ones(1)
            ),
            "history_bounds must rise": lambda: LearnedBlendConfig(history_bounds=(5, 5)),
            "item_bounds must rise": lambda: LearnedBlendConfig(item_bounds=(5, 1)),
            "l2 > 0": lambda: LearnedBlendConfig(l2=0),
            "new_item_odds must be > 0": lambda: LearnedBlendConfig(new_item_odds=0),
            "shrinkage_queries must be >= 0": lambda: LearnedBlendConfig(shrinkage_queries=-1),
            "max_candidates >= 2": lambda: LearnedBlendConfig(max_candidates=1),
        }
    )
