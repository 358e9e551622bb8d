import csv
import itertools

import numpy as np
import pytest

from tests.recsys.testing.synthetic import World, markov_world, sequences, two_tastes, write_csv

WORLDS = {"two_tastes": two_tastes, "markov_world": markov_world}


def number(external_id: str) -> int:
    return int(external_id.split("-")[1])


def events_by_user(world: World) -> dict[str, list[str]]:
    met: dict[str, list[str]] = {user: [] for user in world.users}
    for user, item in zip(world.user_ids.tolist(), world.item_ids.tolist(), strict=True):
        met[user].append(item)
    return met


def test_two_tastes_splits_users_and_items_by_parity():
    world = two_tastes(num_users=6, num_items=12, events_per_user=4)
    for user, items in events_by_user(world).items():
        assert len(set(items)) == 4
        assert {number(item) % 2 for item in items} == {number(user) % 2}
        own_taste = {
            item for item in world.catalogue.item_ids if number(item) % 2 == number(user) % 2
        }
        assert world.answers[user] == own_taste - set(items)


def test_two_tastes_texts_tell_the_tastes_apart():
    catalogue = two_tastes(num_items=40).catalogue
    words = [set(text.replace(",", "").replace(".", "").split()) for text in catalogue.descriptions]
    even, odd = set.union(*words[0::2]), set.union(*words[1::2])
    assert even & odd == {"About", "and"}
    assert {names[1] for names in catalogue.categories[0::2]} == {"garden"}
    assert len(set(catalogue.titles)) == 40


def test_markov_world_has_one_successor_for_each_item():
    world = markov_world(num_users=30, num_items=9, events_per_user=11)
    successor: dict[str, set[str]] = {item: set() for item in world.catalogue.item_ids}
    met = events_by_user(world)
    for items in met.values():
        for item, following in itertools.pairwise(items):
            successor[item].add(following)
    assert {len(items) for items in successor.values()} == {1}
    assert len(set.union(*successor.values())) == 9, "one cycle through every item"
    assert all(world.answers[user] == successor[items[-1]] for user, items in met.items())


@pytest.mark.parametrize("build", WORLDS.values(), ids=WORLDS)
def test_worlds_are_deterministic_by_seed_and_ordered_in_time(build, tmp_path):
    folders = [tmp_path / name for name in ("first", "same", "other")]
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        folder.mkdir()
        write_csv(build(seed=seed), folder)
    files = [[path.read_bytes() for path in sorted(folder.iterdir())] for folder in folders]
    assert files[0] == files[1]
    assert files[0] != files[2]
    assert (np.diff(build().times) > 0).all()


def test_sequences_are_a_leave_one_out_split():
    world = two_tastes(num_users=5, num_items=16)
    split = sequences(world)
    rows = world.user_rows()
    for user_row in range(1, 6):
        own = world.item_rows()[rows == user_row]
        start, end = split.offsets[user_row], split.offsets[user_row + 1]
        assert split.item_rows[start:end].tolist() == own.tolist()
        assert (split.train_end[user_row], split.validation_end[user_row]) == (end - 2, end - 1)
        assert not set(own.tolist()) & world.answer_rows()[user_row]
    assert split.offsets[1] == 0, "row 0 is nobody"

    everything = sequences(world, num_held_out=0)
    assert everything.train_end.tolist() == everything.offsets[1:].tolist()


def test_users_too_short_to_hold_out_have_all_in_train():
    split = sequences(markov_world(num_users=3, events_per_user=2))
    assert split.train_end.tolist() == split.offsets[1:].tolist()
    assert len(split.label_positions("test")) == 0


def test_csv_holds_the_world(tmp_path):
    world = two_tastes(num_users=3, num_items=8)
    paths = write_csv(world, tmp_path)
    with paths["events"].open(encoding="utf-8") as file:
        events = list(csv.DictReader(file))
    assert [row["item_id"] for row in events] == world.item_ids.tolist()
    assert events[1]["event_time"] == "2024-01-01T01:00:00Z"
    with paths["items"].open(encoding="utf-8") as file:
        items = list(csv.DictReader(file))
    assert [row["title"] for row in items] == list(world.catalogue.titles)
    assert items[1]["categories"] == "books|space"
    with paths["users"].open(encoding="utf-8") as file:
        assert [row["user_id"] for row in csv.DictReader(file)] == world.users


def test_worlds_without_an_answer_are_refused():
    with pytest.raises(ValueError, match=r"events_per_user < num_items // 2"):
        two_tastes(num_items=8, events_per_user=4)
    with pytest.raises(ValueError, match="num_items >= 2"):
        markov_world(num_items=1)
