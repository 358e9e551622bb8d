"""Versions of semantic IDs over the life of a catalogue: what is published never moves."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelines.config.content import SemanticIdsConfig
from pipelines.semantic_ids.store import SemanticIdStore
from pipelines.semantic_ids.versions import Content, NextVersion, next_version, refit_ids
from recsys.semantic_ids.collisions import NoFreeIdError

CONFIG = SemanticIdsConfig()


def look_up_content(names: Sequence[str], *, encoder: str = "made-up", dim: int = 16) -> Content:
    """Give each name its own vector, the same in any order; "no-..." has no content."""
    vectors = torch.zeros(len(names) + 1, dim)
    for row, name in enumerate(names, start=1):
        if not name.startswith("no-"):
            seed = sum(ord(letter) * 31**place for place, letter in enumerate(name))
            generator = torch.Generator().manual_seed(seed)
            vectors[row] = torch.randn(dim, generator=generator)
    return Content(item_ids=list(names), vectors=vectors, encoder=encoder)


def names(first: int, last: int) -> list[str]:
    return [f"item-{number}" for number in range(first, last)]


@pytest.fixture
def store(tmp_path: Path) -> SemanticIdStore:
    return SemanticIdStore(tmp_path / "semantic_ids")


def made_of(
    content: Content, store: SemanticIdStore, config: SemanticIdsConfig = CONFIG
) -> NextVersion:
    made = next_version(content, store, config)
    assert made is not None
    return made


def published(
    content: Content, store: SemanticIdStore, config: SemanticIdsConfig = CONFIG
) -> NextVersion:
    made = made_of(content, store, config)
    store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    return made


def texts(made: NextVersion, content: Content) -> dict[str, str]:
    """The ID of each item that has one."""
    rows = dict(zip(content.item_ids, made.id_rows[1:].tolist(), strict=True))
    return {item_id: made.ids.text(row) for item_id, row in rows.items() if row}


def test_ids_follow_items_through_other_rows_and_new_items(store):
    content = look_up_content(names(0, 40))
    before = texts(published(content, store), content)
    later = look_up_content(list(reversed(names(0, 60))))
    made = published(later, store)
    after = texts(made, later)
    assert made.how == "appended"
    assert made.num_new == 20
    assert {name: after[name] for name in before} == before
    assert len(set(after.values())) == 60


def test_an_item_that_leaves_and_comes_back_has_its_id_and_nobody_inherits_it(store):
    content = look_up_content(names(0, 40))
    before = texts(published(content, store), content)
    without = look_up_content([*names(5, 40), *names(100, 120)])
    meanwhile = texts(published(without, store), without)
    gone = {before[name] for name in names(0, 5)}
    assert not gone & set(meanwhile.values())
    back = look_up_content([*names(100, 120), *names(0, 40)])
    made = published(back, store)
    assert made.how == "kept"
    assert texts(made, back) == before | {
        name: text for name, text in meanwhile.items() if name not in before
    }


def test_another_encoder_is_aligned_to_the_published_codes(store):
    content = look_up_content(names(0, 80))
    first = published(content, store)
    # The same neighbourhoods in a mirrored space.
    other = replace(content, vectors=-content.vectors, encoder="another")
    made = published(other, store)
    assert made.how == "aligned"
    assert made.ids.parent == first.ids.version
    assert made.kept is not None
    assert made.kept.full > 0.2
    assert made.origin["encoder"] == "another"
    assert len(set(texts(made, other).values())) == 80


def test_a_refit_with_another_seed_keeps_most_ids(store):
    content = look_up_content(names(0, 150))
    published(content, store)
    warm = refit_ids(content, store, CONFIG, seed=9)
    assert warm.kept is not None
    assert warm.kept.full > 0.8


def test_other_levels_are_trained_anew_and_say_what_they_replace(store):
    content = look_up_content(names(0, 80))
    first = published(content, store)
    made = published(content, store, replace(CONFIG, num_levels=4))
    assert made.how == "trained"
    assert made.kept is None
    assert made.ids.parent == first.ids.version
    assert made.ids.num_levels == 4


def test_tiny_catalogues_have_ids_and_those_without_content_no_version(store):
    for count in (1, 2, 3, 5, 17):
        content = look_up_content(names(0, count))
        assert len(set(texts(made_of(content, store), content).values())) == count
    for found in ([], ["no-a", "no-b"]):
        assert next_version(look_up_content(found), store, CONFIG) is None


def test_chosen_levels_that_are_full_are_chosen_again(store):
    few = look_up_content(names(0, 5))
    first = published(few, store)
    many = look_up_content(names(0, 400))
    made = published(many, store)
    assert made.how == "trained"
    assert made.ids.parent == first.ids.version
    assert len(set(texts(made, many).values())) == 400


def test_named_levels_that_are_full_are_the_users_to_change(store):
    config = SemanticIdsConfig(codes_per_level=2)
    published(look_up_content(names(0, 5)), store, config)
    with pytest.raises(NoFreeIdError, match="more or larger levels"):
        made_of(look_up_content(names(0, 20)), store, config)
