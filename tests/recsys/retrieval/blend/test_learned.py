import copy
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import ndcg_at_k
from recsys.models.names import REPEATS
from recsys.retrieval.blend.choices import draw_choices
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import OWN
from recsys.retrieval.blend.learned import LearnedBlend, write_blend
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
    """Lists, targets, history lengths: "young" is right for items below 200, "old" for others."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, NUM_ITEMS, (num_queries,), generator=generator)
    lengths = torch.randint(1, 21, (num_queries,), generator=generator)
    lists = {
        name: source(targets, torch.where(is_right, 0.9, 0.0), generator)
        for name, is_right in (("young", targets < 200), ("old", targets >= 200))
    }
    return lists, Jagged.one_each(targets), lengths


def ndcg(blended: Blended, targets: Jagged) -> float:
    hit = blended.item_rows == targets.values[:, None]
    ranks = torch.where(hit.any(1), hit.byte().argmax(1) + 1, 0)
    return float(ndcg_at_k(Jagged(ranks, targets.offsets), 10).mean())


def fused(lists: dict[str, TopK]) -> Blended:
    return reciprocal_rank_fusion({name: top.item_rows for name, top in lists.items()}, LENGTH)


def test_each_kind_of_item_trusts_the_source_that_is_right_for_it():
    config = BlendConfig(item_bounds=(200.0,), shrinkage_queries=30)
    values = torch.arange(float(NUM_ITEMS))
    lists, targets, _ = two_worlds(2000)
    blend = LearnedBlend.fit(lists, targets, config, item_values=values)
    alike = LearnedBlend.fit(lists, targets)
    lists, targets, _ = two_worlds(2000, seed=1)

    by_all = ndcg(alike.blend(lists, LENGTH), targets)
    best_alone = max(ndcg(fused({name: lists[name]}), targets) for name in lists)
    known = blend.blend(lists, LENGTH, item_values=values)
    assert ndcg(known, targets) > by_all + 0.05
    assert by_all > max(best_alone + 0.1, ndcg(fused(lists), targets))
    for kind, right in ((known.item_rows < 200, 0), (known.item_rows >= 200, 1)):
        first = [
            known.contributions[..., s][kind & (known.source_ranks[..., s] == 1)].mean()
            for s in (0, 1)
        ]
        assert first[right] > 1.4 * first[1 - right]
    # Items of no known kind get the weights of all.
    nothing = blend.blend(lists, 5, item_values=torch.full((NUM_ITEMS,), torch.nan))
    assert torch.equal(nothing.item_rows, alike.blend(lists, 5).item_rows)
    assert torch.equal(nothing.item_rows, blend.blend(lists, 5).item_rows)


def test_the_users_own_items_trust_other_sources_than_new_ones_do():
    lists, targets, _ = two_worlds(2000)
    # The user has had the items below row 200, of which "young" is right.
    rows = torch.cat([top.item_rows for top in lists.values()], 1)
    rows = rows.masked_fill(rows >= 200, -1)
    lists[REPEATS.name] = TopK(torch.zeros(rows.shape).masked_fill(rows < 1, -torch.inf), rows)
    blend = LearnedBlend.fit(lists, targets, BlendConfig(shrinkage_queries=30))
    assert blend.repeats_source == list(lists).index(REPEATS.name)
    alike = copy.copy(blend)
    alike.weights = blend.weights[-1:].expand(2, -1, -1)
    assert alike.repeats_source == -1
    by_kind, by_all = (ndcg(one.blend(lists, LENGTH), targets) for one in (blend, alike))
    assert by_kind > by_all + 0.05
    # Infinitely many imagined queries leave the weights of all.
    shrunk = LearnedBlend.fit(lists, targets, BlendConfig(shrinkage_queries=math.inf))
    assert torch.equal(shrunk.weights, blend.weights[-1:].expand(3, -1, -1))
    # Where no repeats are listed, all items rank as new ones.
    part = {name: lists[name] for name in ("old", "young")}
    new = copy.copy(blend)
    new.weights = blend.weights[:1].expand(2, -1, -1)
    assert torch.equal(blend.blend(part, 5).scores, new.blend(part, 5).scores)


def test_the_next_target_counts_more_than_later_ones():
    rows = torch.tensor([[7, 5, 3, 9, 4]])
    targets = Jagged(torch.tensor([5, 8, 4]), torch.tensor([0, 3]))
    lists = {"a": TopK(torch.linspace(1, 0, 5)[None], rows)}
    drawn = draw_choices(lists, targets, torch.ones(1), max_queries=9, max_candidates=9)
    shares = dict(zip(drawn.item_rows[0].tolist(), drawn.choices.chosen[0].tolist(), strict=True))
    assert shares == pytest.approx({7: 0, 5: 0.75, 3: 0, 9: 0, 4: 0.25})


def weighing(sources: tuple[str, ...], **weights: list[float]) -> LearnedBlend:
    """A blend whose named features have one weight per source."""
    table = torch.zeros(2, len(sources), len(FEATURES))
    for name, by_source in weights.items():
        table[..., FEATURES.index(name)] = torch.tensor(by_source)
    return LearnedBlend(BlendConfig(), sources, table, torch.ones(len(sources)))


def test_a_missing_source_changes_no_weight():
    # Weights were fitted to queries with and without it, and demand must count as it did there.
    blend = weighing(("a", "b", "silent"), presence=[1.0, 3.0, 0.0])
    top = TopK(torch.tensor([[2.0, 1.0]] * 2), torch.tensor([[5, 7], [5, 7]]))
    holes = TopK(torch.tensor([[2.0], [-torch.inf]]), torch.tensor([[7], [-1]]))
    assert blend.blend({"a": top}, 1).scores.tolist() == [[1], [1]]
    # Query 1 has nothing from b.
    blended = blend.blend({"a": top, "b": holes}, 2)
    assert blended.item_rows.tolist() == [[7, 5], [5, 7]]
    assert blended.scores.tolist() == [[4, 1], [1, 1]]
    # Alone, a source without weight still ranks by its own order.
    assert blend.blend({"silent": top}, 2).item_rows.tolist() == [[5, 7], [5, 7]]


def test_learns_from_a_sample_what_it_learns_from_all_candidates():
    lists, targets, _ = two_worlds(1500)
    small, full = (
        LearnedBlend.fit(lists, targets, BlendConfig(max_candidates=number)) for number in (24, 60)
    )
    assert small.loss == pytest.approx(full.loss, rel=0.05)
    rankings = [ndcg(blend.blend(lists, LENGTH), targets) for blend in (small, full)]
    assert rankings[0] == pytest.approx(rankings[1], abs=0.01)


def test_a_source_leads_and_the_weights_rank_the_rest():
    lists, targets, _ = two_worlds(300)
    lists["old"] = TopK(*(part[:, :5] for part in lists["old"]))
    blend = LearnedBlend.fit(lists, targets).with_own(weighing(("young",), presence=[3.0]))
    led = blend.led_by("old")
    for lengths in (None, torch.full((300,), OWN)):
        rest = blend.blend(lists, 2 * LENGTH, history_lengths=lengths).item_rows
        found = led.blend(lists, 2 * LENGTH, history_lengths=lengths).item_rows
        assert torch.equal(found[:, :5], lists["old"].item_rows)
        for first, ranked, others in zip(lists["old"].item_rows, found, rest, strict=True):
            assert torch.equal(ranked[5:], others[~torch.isin(others, first)])


def assert_an_earlier_version_is_refused(blend: LearnedBlend, folder: Path) -> None:
    """It had weights by kinds of users."""
    about = {
        "sources": list(blend.sources),
        "features": list(FEATURES),
        "config": asdict(blend.config) | {"history_bounds": []},
    }
    tensors = {"weights": blend.weights[None], "scales": blend.scales}
    write_blend(folder / "earlier", tensors, about)
    assert_refused({"fit it again": lambda: LearnedBlend.load(folder / "earlier")})


def test_what_is_saved_is_what_is_loaded(tmp_path):
    lists, targets, lengths = two_worlds(200)
    config = BlendConfig(item_bounds=(0.5,), max_queries=100)
    asked = {"history_lengths": lengths, "item_values": torch.rand(NUM_ITEMS)}
    blend = LearnedBlend.fit(lists, targets, config, **asked)
    digest = blend.save(tmp_path)
    loaded = LearnedBlend.load(tmp_path)
    assert (loaded.config, loaded.sources) == (blend.config, blend.sources)
    assert loaded.loss == blend.loss
    found, expected = (one.blend(lists, 9, **asked) for one in (loaded, blend))
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.equal(found.scores, expected.scores)
    assert loaded.save(tmp_path / "again") == digest
    assert_an_earlier_version_is_refused(blend, tmp_path)


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
    lists, targets, _ = two_worlds(20)
    blend = weighing(("young", "old"), presence=[1.0, 1.0])
    nothing = Jagged.from_lists([[]] * 20)
    assert_refused(
        {
            "none of the 20 queries has a target": lambda: LearnedBlend.fit(lists, nothing),
            "no source to blend": lambda: LearnedBlend.fit({}, targets),
            r"sources \['new'\] have no weights": lambda: blend.blend({"new": lists["old"]}, 3),
            "must be >= 1, got 0": lambda: blend.blend(lists, 0),
            "scales must be finite": lambda: weighing(("a",), presence=[torch.nan]),
            "item_bounds must rise": lambda: BlendConfig(item_bounds=(5, 1)),
            "l2 must be > 0": lambda: BlendConfig(l2=0),
            "new_item_odds must be > 0": lambda: BlendConfig(new_item_odds=0),
            "shrinkage_queries must be >= 0": lambda: BlendConfig(shrinkage_queries=-1),
            "max_candidates must be >= 2": lambda: BlendConfig(max_candidates=1),
        }
    )
