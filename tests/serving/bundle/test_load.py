import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from serving.bundle.load import load_bundle
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, with_model


def test_bundle_reads_back_what_was_written(parts, tmp_path):
    bundle = load_bundle(write_bundle(tmp_path, parts, version="2026-01-01"))
    assert bundle.version == "2026-01-01"
    assert list(bundle.catalogue.item_ids) == list(parts.catalogue.item_ids)
    assert list(bundle.catalogue.display_texts) == list(parts.catalogue.display_texts)
    assert bundle.catalogue.row_of("item-7") == 7
    assert bundle.catalogue.row_of("") is None
    assert bundle.users.row_of("user-3") == 3
    np.testing.assert_array_equal(bundle.users.history(3), parts.users.history(3))
    assert len(bundle.users.history(0)) == 0
    tens = bundle.catalogue.categories.with_any(["tens"])
    assert np.flatnonzero(tens).tolist() == [10, 20, 30, 40]
    served = bundle.retriever.index.vectors(torch.arange(1, 41))
    np.testing.assert_array_equal(served, parts.two_tower.item_vectors[1:])
    # A bundle's model encodes the same vectors as the one that was saved.
    again = bundle.retriever.model.all_item_vectors().numpy()
    np.testing.assert_array_equal(again, parts.two_tower.item_vectors)


@pytest.mark.parametrize("version", ["", "a/b", "../a", "..", ".hidden", "v1+2", "x" * 65])
def test_version_must_be_a_plain_name(parts, tmp_path, version):
    with pytest.raises(ValueError, match="version"):
        write_bundle(tmp_path / "bundles", parts, version=version)
    assert not list((tmp_path / "bundles").glob("*bundle*"))


def test_parts_of_different_runs_are_refused_and_leave_nothing(parts, tmp_path):
    (tmp_path / "other").mkdir()
    other = synthetic_parts(tmp_path / "other", SyntheticSize(num_items=50, num_users=14))
    users, tower, own = parts.users, parts.two_tower, parts.catalogue
    foreign = np.where(users.item_rows == 1, 50, users.item_rows)
    longer = np.append(users.offsets, [len(users.item_rows)] * 2)
    texts = {"item_ids": other.catalogue.item_ids, "display_texts": other.catalogue.display_texts}
    twice = type(own.item_ids).from_strings(["", "item-1", *["item-1"] * 39])

    def of(others, name):
        return {"models": with_model(parts, name, others.models[name]).models}

    mixtures = {
        "popularity is 51": of(other, "popularity"),
        "item_to_item is 51": of(other, "item_to_item"),
        "item_categories has offsets": {"catalogue": replace(own, **texts)},
        "50, allowed are": {"users": replace(users, item_rows=foreign)},
        "histories has offsets for 15": {"users": replace(users, offsets=longer)},
        "item_vectors.npy is 51": {
            "two_tower": replace(tower, item_vectors=other.two_tower.item_vectors)
        },
        "items.faiss is 51": {"two_tower": replace(tower, index=other.two_tower.index)},
        "num_item_rows 51": of(other, "two_tower"),
        "content.npy is 51": {"content": other.content},
        "content_dim 4, the bundle has 3": {"content": parts.content[:, :3]},
        "user_features {'age': 4}, the bundle has": {
            "user_features": {},
            "users": replace(users, features={}),
        },
        r"allowed are \[0, 3\)": {"user_features": {"age": 3}},
        "a second time at row 2": {"catalogue": replace(own, item_ids=twice)},
    }
    for message, change in mixtures.items():
        with pytest.raises(ValueError, match=message):
            write_bundle(tmp_path / "bundles", replace(parts, **change), version="v1")
        assert list((tmp_path / "bundles").iterdir()) == []


def test_forged_dimensions_are_refused(bundles_dir, reseal):
    directory = bundles_dir / "bundle-v1"
    document = json.loads((directory / "manifest.json").read_text())
    for name in document["dimensions"]:
        if name == "num_events":
            continue
        wrong = {**document["dimensions"], name: document["dimensions"][name] + 1}
        reseal(directory, dimensions=wrong)
        with pytest.raises(ValueError, match=r"different runs|allowed are"):
            load_bundle(directory)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("histories/offsets.npy", np.zeros(13, np.float64), "float64 .* expected int64"),
        ("histories/offsets.npy", np.zeros((13, 1), np.int64), r"\(13, 1\), expected int64"),
        ("histories/offsets.npy", np.zeros(14, np.int64), "do not cut its"),
        ("histories/times.npy", np.zeros(3, np.int64), "3 times for"),
        ("catalogue/item_ids.utf8.npy", np.full(231, 255, np.uint8), "item_ids"),
        (
            "users/feature.age.npy",
            np.zeros(5, np.int64),
            "feature.age.npy is 5, the rest of the bundle needs 13",
        ),
        ("users/feature.age.npy", np.full(13, -1), "rows -1 to -1"),
    ],
)
def test_array_that_does_not_fit_is_refused_by_name(bundles_dir, reseal, name, array, message):
    directory = bundles_dir / "bundle-v1"
    np.save(directory / name, array)
    reseal(directory)
    with pytest.raises(ValueError, match=message):
        load_bundle(directory)


def test_a_bundle_loads_without_torchrec_and_the_compiler(released):
    """Importing them takes longer than all else of a start."""
    code = """
import sys
from pathlib import Path
from serving.bundle.load import load_bundle
load_bundle(Path(sys.argv[1]))
print([name for name in ("torchrec", "torch._dynamo", "sympy") if name in sys.modules])
"""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(released / "current")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.strip() == "[]"
