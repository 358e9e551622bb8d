from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import KeptMasks, load_bundle
from serving.bundle.properties import Properties, build_column
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts
from tests.serving.writable import writable

KINDS = {"price": "number", "brand": "text", "tags": "list", "new": "boolean", "since": "date"}
FIRST = {
    "price": 1.5,
    "brand": "Ac\u00fcme",
    "tags": ["b", "a"],
    "new": True,
    "since": "2026-01-02",
}
NEW = {**FIRST, "brand": "Other", "tags": ["c", "a"], "unheard of": 1}


@pytest.fixture
def bundles(tmp_path):
    """A bundle whose first item has all properties, and whose other items have none."""
    (tmp_path / "scratch").mkdir()
    parts = synthetic_parts(tmp_path / "scratch", SyntheticSize())
    values = {name: [value, *[None] * 39] for name, value in FIRST.items()}
    parts = replace(parts, properties=Properties.of_values(KINDS, values))
    write_bundle(tmp_path, parts, version="v1")
    return tmp_path


def append(bundles, parent, *items):
    vectors = np.ones((len(items), 8), np.float32)
    return write_delta(bundles, parent, items, content=vectors[:, :4].copy(), item_vectors=vectors)


def test_properties_are_read_back_as_they_were_written(bundles):
    bundle = load_bundle(bundles / "bundle-v1")
    assert bundle.manifest.properties == bundle.properties.kinds == KINDS
    assert bundle.properties.of(1) == FIRST
    assert bundle.properties.of(0) == bundle.properties.of(2) == {}


def test_deltas_extend_properties_and_what_they_do_not_know_is_missing(bundles):
    append(bundles, "v1", NewItem(item_id="new-1", display_text="New", properties=NEW))
    append(bundles, "v1+1", NewItem(item_id="new-2", display_text="Newer"))
    known = load_bundle(bundles / "bundle-v1+2").properties
    assert known.of(1) == FIRST
    assert known.of(41) == {name: NEW[name] for name in KINDS}
    assert known.of(42) == {}
    assert np.flatnonzero(known.columns["tags"].with_any(["a"])).tolist() == [1, 41]
    assert np.flatnonzero(known.columns["brand"].with_any(["Other"])).tolist() == [41]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("boolean", "yes"), ("date", "2026-02-30"), ("date", 1e15), ("list", "a|b"), ("number", True)],
)
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_property(kind, value):
    with pytest.raises(ValueError, match=f"property size is a {kind}"):
        build_column("size", kind, [None, value])


def test_dates_are_seconds_since_1970():
    found = build_column("at", "date", [date(1970, 1, 2), "1969-12-31T23:00:00", 5, None])
    assert found.values[1:4].tolist() == [86_400, -3_600, 5]
    assert np.isnan(found.values[[0, 4]]).all()


def npy(path):
    return np.load(path, allow_pickle=False)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("price.npy", lambda a: a[:-1], "price is 40, the rest of the bundle needs 41"),
        ("price.npy", lambda a: np.where(np.isnan(a), np.inf, a), "must hold finite numbers"),
        ("price.npy", lambda a: a.astype(np.float32), "expected float64"),
        ("new.npy", lambda a: a * 2, "is a boolean and holds other numbers"),
        ("since.npy", lambda a: a * 1e3, "outside of years 1 to 9999"),
        ("brand.codes.npy", lambda a: a + 5, "holds rows 5 to 6, allowed are"),
        ("tags.codes.npy", lambda a: a * 0, "or empty texts"),
        ("tags.offsets.npy", lambda a: a[::-1].copy(), "offsets that do not cut"),
        ("brand.texts.utf8.npy", lambda a: a | 0x80, "cannot be used"),
    ],
)
def test_damaged_properties_are_refused(bundles, reseal, file, change, says):
    writable(bundles)
    path = bundles / "bundle-v1" / "properties" / file
    np.save(path, change(npy(path)))
    reseal(bundles / "bundle-v1")
    with pytest.raises(ValueError, match=says):
        load_bundle(bundles / "bundle-v1")


def test_a_delta_with_other_properties_than_its_parent_is_refused(bundles, reseal):
    directory = append(bundles, "v1", NewItem(item_id="new-1", display_text="New"))
    writable(bundles)
    (directory / "properties" / "price.npy").unlink()
    reseal(directory, properties={name: kind for name, kind in KINDS.items() if name != "price"})
    with pytest.raises(ValueError, match=r"has properties .* its parent has"):
        load_bundle(directory)


def test_masks_used_last_are_kept_and_memory_is_bounded():
    masks = KeptMasks(80, max_bytes=160)
    made = []

    def mask_of(key):
        def make():
            made.append(key)
            return np.arange(80) % 7 == key

        return masks.get(key, make)

    for key in (1, 2, 1, 3, 1, 2):
        assert np.array_equal(mask_of(key), np.arange(80) % 7 == key)
    assert made == [1, 2, 3, 2]
