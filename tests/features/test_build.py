"""The whole artefact against known answers, against a slow truth, and row by row accounted for."""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.build import (
    FeaturesConfig,
    FeaturesReport,
    FilterConfig,
    SourceConfig,
    SplitConfig,
    build_features,
)
from features.shown import read_refused
from recsys.data.dataset import HeldOut, Sequences

NOW = datetime(2024, 6, 1, tzinfo=UTC)
START = 1_700_000_000


def events_of(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user_id", "item_id", "event_time"], orient="row")


def build(
    tmp_path: Path, events: pl.DataFrame, *, name: str = "out", **options: object
) -> tuple[Path, FeaturesReport]:
    path = tmp_path / "events.parquet"
    events.write_parquet(path)
    source = SourceConfig(paths=(path,))
    config = FeaturesConfig(events=source, now=NOW, **options)  # type: ignore[arg-type]
    return tmp_path / name, build_features(config, tmp_path / name)


def histories(out: Path) -> dict[str, list[str]]:
    """Read the sequences back as ids."""
    users, items = (
        dict(pl.read_parquet(out / f"vocabularies/{name}.parquet").rows())
        for name in ("users", "items")
    )
    folder = out / "sequences/given"
    offsets, rows = np.load(folder / "offsets.npy"), np.load(folder / "item_rows.npy")
    return {
        user: [items[item] for item in rows[offsets[row] : offsets[row + 1]].tolist()]
        for row, user in users.items()
    }


def split_ends(out: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    folder = out / "sequences/given"
    return tuple(np.load(folder / f"{n}.npy") for n in ("offsets", "train_end", "validation_end"))


SMALL = [
    ("bo", "x", START + 50),
    ("ann", "y", START + 20),
    ("ann", "x", START + 10),
    ("ann", "z", START + 20),
    ("bo", "z", START + 40),
    ("cy", "z", START + 90_000),
]


def test_small_world_is_laid_out_as_promised(tmp_path: Path) -> None:
    out, report = build(tmp_path, events_of(SMALL))
    # Ties (y and z of ann) keep the order of the input.
    assert histories(out) == {"ann": ["x", "y", "z"], "bo": ["z", "x"], "cy": ["z"]}
    # ann has three events: one each; the others are too short and all in train.
    ends = [one.tolist() for one in split_ends(out)]
    assert ends == [[0, 0, 3, 5, 6], [0, 1, 5, 6], [0, 2, 5, 6]]
    times = np.load(out / "sequences/given/times.npy")
    assert (times - START).tolist() == [10, 20, 20, 40, 50, 90_000]
    assert report.labels == {"train": 1, "validation": 1, "test": 1}
    described = json.loads((out / "features.json").read_text())
    assert (described["num_user_rows"], described["num_item_rows"]) == (4, 4)
    assert json.loads((out / "report.json").read_text()) == report.as_dict()
    assert not list(out.glob(".scratch-*"))


def test_without_times_the_sequence_index_orders_and_time_features_switch_off(
    tmp_path: Path,
) -> None:
    rows = [("a", "x", 2), ("a", "y", 1), ("b", "y", 7), ("b", "x", 8), ("a", "z", 3)]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "sequence_index"], orient="row")
    out, report = build(tmp_path, frame)
    assert histories(out) == {"a": ["y", "x", "z"], "b": ["y", "x"]}
    assert not (out / "sequences/given/times.npy").exists()
    described = json.loads((out / "features.json").read_text())
    assert [feature["name"] for feature in described["context_features"]] == ["user_num_events"]
    assert any("no event_time" in warning for warning in report.warnings)
    assert [path.name for path in (out / "events").iterdir()] == ["part-00000.parquet"]
    with pytest.raises(ValueError, match="global_time split needs event_time"):
        build(tmp_path, frame, name="other", splits=SplitConfig(kind="global_time"))


def test_rows_stay_when_an_earlier_vocabulary_grows(tmp_path: Path) -> None:
    first, _ = build(tmp_path, events_of(SMALL), name="first")
    later = events_of([("aaron", "a", START), ("bo", "z", START + 1), ("zed", "x", START + 2)])
    out, report = build(tmp_path, later, name="second", previous=first)
    items = pl.read_parquet(out / "vocabularies/items.parquet")["id"].to_list()
    assert items == ["x", "y", "z", "a"]
    found = histories(out)
    assert list(found) == ["ann", "bo", "cy", "aaron", "zed"]
    assert found == {"ann": [], "bo": ["z"], "cy": [], "aaron": ["a"], "zed": ["x"]}
    assert report.users == 5


def test_types_have_rows_that_stay_and_one_type_alone_has_none(tmp_path: Path) -> None:
    def typed(*types: str) -> pl.DataFrame:
        return events_of(SMALL).with_columns(event_type=pl.Series(types))

    reading = partial(build, tmp_path, history_event_types=True)
    views = typed(*["view"] * 5, "impression")
    one, _ = reading(views, name="one", filters=FilterConfig(shown_types=("impression",)))
    assert not list(one.rglob("event_types*"))
    assert "event_types" not in json.loads((one / "features.json").read_text())
    some = typed("view", "cart", "view", "cart", "cart", "view")
    first, _ = reading(some, name="first", previous=one)
    types = np.load(first / "sequences/given/event_types.npy").tolist()
    of_ann = dict(zip(histories(first)["ann"], types, strict=False))
    assert of_ann == {"x": 2, "y": 1, "z": 1}
    assert types[3:] == [1, 2, 2]
    later = typed("buy", "cart", "buy", "buy", "buy", "buy")
    out, _ = reading(later, name="second", previous=first)
    assert json.loads((out / "features.json").read_text())["event_types"] == ["cart", "view", "buy"]
    again, _ = reading(typed(*["cart"] * 6), name="again", previous=out)
    assert np.load(again / "sequences/given/event_types.npy").tolist() == [1] * 6


def test_lists_for_purchases_are_held_out_and_judged_by_purchases_alone(tmp_path: Path) -> None:
    # Users view, put into the cart and buy, twice; they view more at the end.
    steps = ["view", "cart", "purchase", "view", "view", "cart", "purchase", "view"]
    rows = [
        (f"u{u}", f"{kind}{u}{n}", 90_000 * n) for u in range(60) for n, kind in enumerate(steps)
    ]
    events = events_of([(user, item, START + time) for user, item, time in rows])
    events = events.with_columns(event_type=pl.Series(steps * 60))
    read = partial(build, tmp_path, events, target_types=("purchase",))
    out, report = read(name="last")
    assert report.labels == {"train": 60, "validation": 60, "test": 60}
    by_time = SplitConfig(kind="auto", validation_share=0.5, test_share=0.25)
    other, by_moment = read(name="moment", splits=by_time)
    assert by_moment.labels == {"train": 60, "validation": 60, "test": 60}
    for folder in (out, other):
        sequences = Sequences.load(folder / "sequences/given")
        for split, place in (("validation", 2), ("test", 6)):
            found = HeldOut.of(sequences, split)  # type: ignore[arg-type]
            assert found.targets.lengths().tolist() == [1] * 60
            assert (found.target_positions() % 8 == place).all()
            # Lists are made before all that is held out, views too.
            ends = sequences.train_end if split == "validation" else sequences.validation_end
            assert found.positions.tolist() == ends[1:].tolist()
            some = found.take(np.array([5, 3]))
            assert sequences.users_of(some.target_positions()).tolist() == [6, 4]
            assert len(HeldOut.later_events(sequences, split, 4).positions) == 0  # type: ignore[arg-type]
            assert sequences.num_labels(split) == 60  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"there are \['cart', 'purchase', 'view'\]"):
        build(tmp_path, events, name="none", target_types=("wish",))


def test_events_that_say_no_are_read_and_are_no_labels(tmp_path: Path) -> None:
    steps = ["view", "view", "dislike", "view", "dislike", "view", "dislike"]
    rows = [(f"u{u}", f"i{n}", START + n) for u in range(9) for n in range(len(steps))]
    events = events_of(rows).with_columns(event_type=pl.Series(steps * 9))
    out, report = build(tmp_path, events)
    sequences = Sequences.load(out / "sequences/given")
    assert (report.labels["validation"], report.labels["test"]) == (9, 9)
    for split, places in (("train", [1]), ("all", [1, 3, 5]), ("validation", [3]), ("test", [5])):
        found = sequences.label_positions(split)  # type: ignore[arg-type]
        assert (found.reshape(9, -1) % 7 == places).all()
        assert sequences.num_labels(split) == len(found)  # type: ignore[arg-type]
    assert sequences.negative is not None
    assert sequences.negative[:7].tolist() == [kind == "dislike" for kind in steps]
    assert sequences.event_types is not None
    assert HeldOut.of(sequences, "test").seen.lengths().tolist() == [5] * 9
    two = HeldOut.later_events(sequences, "all", 2)
    assert (two.positions.reshape(9, 2) % 7 == [3, 5]).all()
    last = HeldOut.later_events(sequences, "all", 1)
    assert (last.positions % 7 == 5).all()
    assert last.targets.lengths().tolist() == [1] * 9
    for name in ("seen", "targets"):
        expected = getattr(HeldOut.of(sequences, "test"), name)
        assert getattr(last, name).values.tolist() == expected.values.tolist()
    without, _ = build(tmp_path, events.filter(pl.col("event_type") == "view"), name="without")
    positive = sequences.positive
    for name in ("times", "offsets", "train_end", "validation_end"):
        expected = np.load(without / f"sequences/given/{name}.npy")
        assert np.array_equal(getattr(positive, name), expected)
    # What the filters leave out changes no file.
    only = FilterConfig(event_types=("view",))
    filtered, _ = build(tmp_path, events, name="filtered", filters=only)
    names = [{one.name for one in folder.rglob("*.npy")} for folder in (filtered, without)]
    assert names[0] == names[1]


def slow_truth(
    rows: list[tuple[str, str, int, float]], filters: FilterConfig
) -> dict[str, list[str]]:
    """Clean and order events in plain Python."""
    first: dict[tuple[str, str, int], int] = {}
    for place, (user, item, time, value) in enumerate(rows):
        if filters.min_value is None or value >= filters.min_value:
            first.setdefault((user, item, time), place)
    kept = sorted((time, place, user, item) for (user, item, time), place in first.items())
    if filters.max_user_events is not None:
        latest: dict[str, list] = defaultdict(list)
        for event in kept:
            latest[event[2]].append(event)
        kept = sorted(e for events in latest.values() for e in events[-filters.max_user_events :])
    before = None
    while kept != before:
        users, items, before = Counter(e[2] for e in kept), Counter(e[3] for e in kept), kept
        kept = [
            e
            for e in kept
            if users[e[2]] >= filters.min_user_events and items[e[3]] >= filters.min_item_events
        ]
    result: dict[str, list[str]] = defaultdict(list)
    for _, _, user, item in kept:
        result[user].append(item)
    return dict(result)


EVENT = st.tuples(
    st.sampled_from(["", "u1", "u2", "u3", "u4", "-7"]),
    st.sampled_from(["i1", "i2", "i3", "i4", "nan", "x\0y"]),
    st.integers(START, START + 12),
    st.sampled_from([1.0, 3.0, 5.0]),
)
FILTERS = st.builds(
    FilterConfig,
    min_value=st.sampled_from([None, 3.0]),
    min_user_events=st.integers(0, 3),
    min_item_events=st.integers(0, 3),
    max_user_events=st.sampled_from([None, 2, 5]),
    max_bad_share=st.just(1.0),
)
SPLITS = (SplitConfig(), SplitConfig(validation_share=0.2))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(EVENT, min_size=1, max_size=60), filters=FILTERS, splits=st.sampled_from(SPLITS)
)
def test_agrees_with_plain_python_loses_nothing_and_leaks_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, int, float]],
    filters: FilterConfig,
    splits: SplitConfig,
) -> None:
    frame = pl.DataFrame(rows, ["user_id", "item_id", "event_time", "value"], orient="row")
    good = [row for row in rows if row[0] != "" and row[1] not in ("nan", "x\0y")]
    truth = slow_truth(good, filters)
    tmp_path = tmp_path_factory.mktemp("build")
    if len(truth) < 2 or len({item for items in truth.values() for item in items}) < 2:
        with pytest.raises(ValueError, match=r"no event is left|events are of one"):
            build(tmp_path, frame, filters=filters, splits=splits)
        return
    out, report = build(tmp_path, frame, filters=filters, splits=splits)
    assert histories(out) == truth
    accounted = report.events + report.duplicates + report.over_user_cap + report.dropped_by_k_core
    accounted += sum(report.quarantined.values()) + sum(report.filtered.values())
    assert accounted == len(rows) == report.rows_in
    assert sum(report.quarantined.values()) == len(rows) - len(good)
    assert pl.read_parquet(out / "events/*.parquet").height == report.events
    assert_nothing_later_is_trained_on(out)


def assert_nothing_later_is_trained_on(out: Path) -> None:
    """Hold that each user's events are in order of time, and the cuts between two times."""
    folder = out / "sequences/given"
    times, offsets, *cuts = (
        np.load(folder / f"{name}.npy")
        for name in ("times", "offsets", "train_end", "validation_end")
    )
    for user, (begin, end) in enumerate(pairwise(offsets)):
        assert (np.diff(times[begin:end]) >= 0).all()
        assert begin <= cuts[0][user] <= cuts[1][user] <= end
        for cut in (cuts[0][user], cuts[1][user]):
            if begin < cut < end:
                assert times[begin:cut].max() <= times[cut:end].min()


def test_catalogue_and_users_lie_by_row(tmp_path: Path) -> None:
    pl.DataFrame(
        {
            "asin": ["z", "x", "unsold", "x", None],
            "title": ["Zed", " ", "Never", "again", "none"],
            "description": [None, "an x", None, None, None],
            "tags": ["b|a|b", None, "c", "d", "e"],
        }
    ).write_parquet(tmp_path / "items.parquet")
    ages = [*range(20, 60), None]
    people = pl.DataFrame({"user_id": [f"u{n}" for n in range(41)], "age": ages, "sex": "f"})
    people.write_csv(tmp_path / "users.csv")
    rows = [(f"u{n}", "xyz"[n % 3], START + n) for n in range(42)]
    out, report = build(
        tmp_path,
        events_of(rows),
        items=SourceConfig(
            paths=(tmp_path / "items.parquet",), columns={"item_id": "asin", "categories": "tags"}
        ),
        users=SourceConfig(paths=(tmp_path / "users.csv",)),
        user_features=("age", "sex"),
        filters=FilterConfig(max_bad_share=0.5),
    )
    items = pl.read_parquet(out / "items.parquet")
    assert items["item_row"].to_list() == [1, 2, 3]
    assert items["display_text"].to_list() == ["an x", "y", "Zed"]
    categories = pl.read_parquet(out / "vocabularies/categories.parquet")["id"].to_list()
    values = np.load(out / "item_categories/values.npy")
    offsets = np.load(out / "item_categories/offsets.npy")
    assert offsets.tolist() == [0, 0, 0, 0, 2]
    assert [categories[value - 1] for value in values] == ["b", "a"]
    assert report.quarantined_in_tables == {"item_id was there before": 1, "item_id is missing": 1}
    assert report.items_without_catalogue == 1
    described = json.loads((out / "features.json").read_text())
    sizes = {feature["name"]: feature["cardinality"] for feature in described["user_features"]}
    assert sizes == {"age": 11, "sex": 2}
    users = pl.read_parquet(out / "users.parquet")
    bucket = np.load(out / "user_features/age.npy")
    assert len(bucket) == len(users) + 1
    unknown = users["age"].is_null().to_numpy()
    assert (bucket[1:][unknown] == 0).all()
    assert (bucket[1:][~unknown] > 0).all()
    # Equal parts of forty ages: four in each bucket.
    assert set(np.bincount(bucket[1:])[1:].tolist()) == {4}


@pytest.mark.parametrize(("min_item_events", "cold"), [(0, ["a", "d"]), (2, [])])
def test_cold_items_of_which_something_is_known_get_rows_by_default(
    tmp_path: Path, min_item_events: int, cold: list[str]
) -> None:
    pl.DataFrame(
        {
            "item_id": ["a", "b", "c", "d", "z"],
            "title": ["A", " ", None, "", "Z"],
            "price": [None, None, None, 3.5, 1.0],
            "domain": ["m", "m", "m", "m", "m"],
        }
    ).write_parquet(tmp_path / "items.parquet")
    twice = SMALL + [(f"{user}2", item, time) for user, item, time in SMALL]
    out, _ = build(
        tmp_path,
        events_of(twice),
        items=SourceConfig(paths=(tmp_path / "items.parquet",)),
        catalogue_only_items="auto",
        filters=FilterConfig(min_item_events=min_item_events),
    )
    ids = pl.read_parquet(out / "vocabularies/items.parquet")["id"].to_list()
    assert ids == ["x", "y", "z", *cold]


def test_times_and_numbers_of_other_countries_are_read_as_said(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(
        "user_id;item_id;event_time;value\nu;a;31.12.2023 23:30;1.234,50\nv;b;01.01.2024 00:15;2\n"
    )
    source = SourceConfig(
        paths=(path,),
        separator=";",
        time_format="%d.%m.%Y %H:%M",
        time_zone="Europe/Berlin",
        decimal_comma=True,
    )
    build_features(FeaturesConfig(events=source, now=NOW), tmp_path / "out")
    kept = pl.read_parquet(tmp_path / "out/events/**/*.parquet").sort("event_time")
    assert kept["event_time"][0] == datetime(2023, 12, 31, 22, 30, tzinfo=UTC)
    assert kept["value"].to_list() == [1234.5, 2.0]


@pytest.mark.parametrize(
    ("num_users", "num_days", "kind", "reason"),
    [
        (60, 20, "global_time", ""),
        (40, 20, "leave_one_out", "only 40 users"),
        (60, 1, "leave_one_out", "days"),
    ],
)
def test_auto_splits_by_time_where_enough_users_cross_the_cuts(
    tmp_path: Path, num_users: int, num_days: int, kind: str, reason: str
) -> None:
    """Users take ten items each, in turn, from the first day to the last."""
    events = events_of(
        [
            (f"u{user}", f"i{(user + place) % 15}", START + place * num_days * 8_640 + user)
            for user in range(num_users)
            for place in range(10)
        ]
    )
    out, report = build(tmp_path, events, splits=SplitConfig(kind="auto"))
    assert report.split_kind == kind
    assert reason in report.split_reason
    assert (report.validation_from is not None) == (kind == "global_time")
    same, _ = build(tmp_path, events, name="same", splits=SplitConfig(kind=kind))  # type: ignore[arg-type]
    assert all(map(np.array_equal, split_ends(out), split_ends(same)))


def test_impossible_slots_and_propensities_are_quarantined(tmp_path: Path) -> None:
    events = events_of([(f"u{n}", f"i{n}", START + n) for n in range(8)]).with_columns(
        pl.Series("slot", ["0", "-1", "1.5", "top", "0", "0", "0", "0"]),
        pl.Series("propensity", [1.0, 0.5, 0.5, 0.5, 0.0, 1.01, float("nan"), 1e-9]),
    )
    out, report = build(tmp_path, events, filters=FilterConfig(max_bad_share=1.0))
    assert report.events == 2
    found = pl.read_parquet(out / "quarantine/*.parquet").select("row", "reason").rows()
    assert found == [
        *((row, "slot is not a whole number >= 0") for row in (1, 2, 3)),
        *((row, "propensity is not in (0, 1]") for row in (4, 5, 6)),
    ]


ROWS = [
    ("ann", "x", START, "impression", "r1", 0),
    ("ann", "y", START, "impression", "r1", 1),
    ("ann", "y", START + 3, "click", "r1", 1),
    ("ann", "never taken", START, "impression", "r1", 2),
    ("bo", "x", START + 5, "view", "r2", 0),
    ("bo", "x", START + 6, "click", "r2", 0),
    ("only looks", "x", START + 9, "impression", "r3", 0),
]


NAMES = ["user_id", "item_id", "event_time", "event_type", "request_id", "slot"]


def test_what_was_shown_is_no_part_of_a_history(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, schema=NAMES, orient="row")
    shown = FilterConfig(event_types=("click",), shown_types=("impression",))
    out, report = build(tmp_path, frame, filters=shown)
    assert report.events == 2
    assert report.filtered == {"shown, no part of histories": 4, "event_type not selected": 1}
    assert report.rows_in == report.events + sum(report.filtered.values())
    assert histories(out) == {"ann": ["y"], "bo": ["x"]}
    # Ann was shown x and chose y; what nobody took has no row.
    chosen = {"place": [0], "user_row": [1], "item_row": [2], "second": [START + 3]}
    refused = read_refused(out, pl.DataFrame({**chosen, "until": [START + 3]}), 1_800)
    assert refused.rows() == [(0, 1)]
    assert read_refused(out, pl.DataFrame({**chosen, "until": [START + 2]}), 1_800).is_empty()
