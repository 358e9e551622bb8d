import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.semantic_ids.append import load_bundle_quantizer
from recsys.data.top_k import ItemMask
from recsys.retrieval.model_sources import ContentNeighbours
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.lifecycle import append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from serving.bundle.delta import NewItem
from serving.bundle.load import load_bundle
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.semantic_ids import NewIds
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.bundle.deltas import append_like
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle
from tests.serving.writable import writable

FRESH = [
    NewItem(item_id="fresh-1", display_text="Fresh one", categories=["even"]),
    NewItem(item_id="fresh-2", display_text="Fresh two"),
]


@pytest.fixture
def bundle(released):
    return load_bundle(released / "bundle-v1")


def new_ids(own, content):
    """IDs as `append` gives them, on the id rows after the last."""
    child = append(own.ids, load_bundle_quantizer(own), torch.from_numpy(content))
    rows = np.arange(own.ids.num_item_rows, child.num_item_rows)
    return NewIds(child.codes[torch.from_numpy(rows)], rows), child


def add_fresh(bundles_dir, *, parent="v1", items=FRESH, like=3):
    """Append items with the content of item 3, and 4, ..."""
    bundle = load_bundle(bundles_dir / f"bundle-{parent}")
    rows = torch.arange(like, like + len(items))
    new, child = new_ids(bundle.semantic_ids, bundle.items.content[rows].numpy())
    return append_like(bundles_dir, parent, items, rows.tolist(), new), child


def rewritten(directory, reseal, **changes):
    """Forge fields of manifest.semantic_ids."""
    document = json.loads((directory / MANIFEST).read_text())
    reseal(directory, semantic_ids={**document["semantic_ids"], **changes})


def test_content_neighbours_are_the_slow_truth(bundle):
    """Of the items behind the longest prefix that has k, the nearest by cosine."""
    content = bundle.items.content
    codes = bundle.semantic_ids.codes
    neighbours = ContentNeighbours(codes, bundle.semantic_ids.ids.level_sizes, content, 41)
    allowed = np.ones(41, bool)
    allowed[[0, 5, 6]] = False
    for row in range(1, 41):
        for k in (1, 3, 40):
            candidates = []
            for length in (3, 2, 1):
                alike = (codes[:, :length] == codes[row, :length]).all(1)
                candidates = [
                    int(one) for one in alike.nonzero() if allowed[int(one)] and one != row
                ]
                if len(candidates) >= k:
                    break
            cosines = torch.cosine_similarity(content[candidates], content[row], dim=1)
            order = sorted(zip((-cosines).tolist(), candidates, strict=True))
            found = neighbours.nearest(row, k, ItemMask(allowed))
            expected = [one for _, one in order][:k]
            assert found.item_rows[0, : len(expected)].tolist() == expected
            assert (found.item_rows[0, len(expected) :] == -1).all()


def test_visitor_gets_the_new_item_that_is_like_the_latest_ones(bundles_dir):
    add_fresh(bundles_dir)
    after = load_bundle(bundles_dir / "bundle-v1+1")
    codes, everything = after.semantic_ids.codes, ItemMask.all(43)
    sizes = after.semantic_ids.ids.level_sizes
    neighbours = ContentNeighbours(codes, sizes, after.items.content, 41)
    # Fresh 1 is item 3 again, fresh 2 item 4.

    def appended(history, k, mask=everything):
        rows = neighbours.appended_like(np.array(history), k, mask).item_rows[0].tolist()
        return [row for row in rows if row > 0]

    assert appended([3], 5)[0] == 41
    assert appended([4], 1) == [42]
    assert set(appended([3, 4], 5)) == {41, 42}
    assert appended([3], 5, ItemMask(np.zeros(43, np.bool_))) == []
    unlike = next(row for row in range(1, 41) if codes[row, 0] not in codes[[3, 4], 0])
    assert appended([unlike], 5) == []

    def place(session):
        items = Recommender(after).answer(Request(session=session, k=40, explain=True)).items
        reported = {item.reason for item in items if item.source == "content_similarity"}
        assert reported <= {"is about the same as the history, and is new"}
        return [item.item_id for item in items].index("fresh-1")

    assert place(["item-3"]) < place([f"item-{unlike}"])


def test_delta_adds_ids_and_moves_none(bundles_dir, bundle):
    directory, child = add_fresh(bundles_dir)
    after = load_bundle(directory)
    assert after.semantic_ids.version == child.version
    assert child.parent == bundle.semantic_ids.version
    assert read_manifest(directory)[0].semantic_ids.num_with_id == 42
    assert torch.equal(after.semantic_ids.codes[:41], bundle.semantic_ids.codes)
    assert after.semantic_ids.text(41) == child.text(41) != ""
    reply = Recommender(after).answer(Request(session=["fresh-1"]))
    assert reply.served_by.semantic_ids == child.version

    more = [NewItem(item_id="fresh-3", display_text="Fresh three")]
    second, grandchild = add_fresh(bundles_dir, parent="v1+1", items=more, like=9)
    assert grandchild.parent == child.version
    twice = load_bundle(second)
    assert twice.semantic_ids.version == grandchild.version
    assert torch.equal(twice.semantic_ids.codes[:43], after.semantic_ids.codes)


def test_item_that_comes_back_has_its_old_id(parts, tmp_path):
    """Id row 99 had an ID in a catalogue of before; the version is the same with and without."""
    folder = parts.semantic_ids
    ids = SemanticIds.load(folder)
    codes = torch.full((100, 3), -1, dtype=torch.int32)
    codes[: ids.num_item_rows] = ids.codes
    free = torch.cartesian_prod(*[torch.arange(size) for size in ids.level_sizes]).int()
    codes[99] = next(one for one in free if not (ids.codes == one).all(1).any())
    replace(ids, codes=codes).save(folder)
    own = load_bundle(write_bundle(tmp_path, parts, version="v1")).semantic_ids
    back = own.extended(NewIds(codes[99:], np.array([99])))
    assert (back.version, back.text(41)) == (own.version, "-".join(map(str, codes[99].tolist())))
    moved = codes[99:].clone()
    moved[0, 2] = (moved[0, 2] + 1) % ids.level_sizes[2]
    with pytest.raises(ValueError, match=r"id row 99 has the ID .* a published ID never moves"):
        own.extended(NewIds(moved, np.array([99])))


def test_new_ids_that_do_not_fit_are_refused(bundle):
    own = bundle.semantic_ids
    new, _ = new_ids(own, bundle.items.content[3:5].numpy())
    faults = {
        r"codes \(2, 2\)": NewIds(new.codes[:, :2], new.id_rows),
        "an id row without an ID": NewIds(torch.full_like(new.codes, -1), new.id_rows),
        "id row 41 to two": NewIds(new.codes, np.array([41, 41])),
        "id row 7 is given to a new item and belongs to another": NewIds(
            new.codes, np.array([7, 41])
        ),
        "share the semantic ID": NewIds(own.codes[3:5], new.id_rows),
        r"each must be in \[0, ": NewIds(new.codes + 100, new.id_rows),
    }
    for message, wrong in faults.items():
        with pytest.raises(ValueError, match=message):
            own.extended(wrong)


@pytest.mark.parametrize(
    "name", ["semantic_ids/semantic_ids.safetensors", "quantizer/quantizer.safetensors"]
)
def test_altered_files_are_refused(bundles_dir, reseal, name):
    """Also where whoever altered them forged the manifest's digests."""
    path = bundles_dir / "bundle-v1" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is altered"):
        load_bundle(bundles_dir / "bundle-v1")
    reseal(bundles_dir / "bundle-v1")
    with pytest.raises(ValueError, match=r"refused .*safetensors: its sha256 is"):
        load_bundle_quantizer(load_bundle(bundles_dir / "bundle-v1").semantic_ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_with_id": 39}, "num_with_id 40, its manifest says 39"),
        ({"level_sizes": [5, 5, 6]}, r"level_sizes \[5, 5, 5\], its manifest says \[5, 5, 6\]"),
        ({"quantizer_digest": "0" * 64}, "quantizer_digest .*, its manifest says 0000"),
    ],
)
def test_manifest_that_says_otherwise_is_refused(bundles_dir, reseal, changes, message):
    rewritten(bundles_dir / "bundle-v1", reseal, **changes)
    with pytest.raises(ValueError, match=message):
        load_bundle(bundles_dir / "bundle-v1")


@pytest.mark.parametrize(
    ("id_rows", "message"),
    [
        (np.arange(40), "semantic_ids is 40, the rest of the bundle needs 41"),
        (np.arange(42) % 41, "semantic_ids is 42, the rest of the bundle needs 41"),
        (np.arange(41) + 1, "must begin with 0"),
        (np.arange(41) * 2, r"hold id rows in \[0, 41\)"),
        (np.arange(41) // 2, "to two items"),
        (np.arange(41.0), "float64"),
        (np.arange(0), "must begin with 0"),
    ],
)
def test_id_rows_that_do_not_fit_are_refused(parts, tmp_path, id_rows, message):
    np.save(parts.semantic_ids / "id_rows.npy", id_rows)
    with pytest.raises(ValueError, match=message):
        write_bundle(tmp_path / "bundles", parts, version="v1")
    assert list((tmp_path / "bundles").iterdir()) == []


def test_delta_whose_version_does_not_recompute_is_refused(bundles_dir, reseal):
    directory, child = add_fresh(bundles_dir)
    path = writable(directory) / "semantic_ids" / "codes.npy"
    codes = np.load(path)
    np.save(path, codes[::-1])
    with pytest.raises(ValueError, match=r"codes\.npy is altered"):
        load_bundle(directory)
    reseal(directory)
    with pytest.raises(ValueError, match=f"with version .*, its manifest says {child.version}"):
        load_bundle(directory)


def test_semantic_ids_the_manifest_does_not_name_are_refused(bundles_dir, reseal):
    reseal(bundles_dir / "bundle-v1", semantic_ids=None)
    with pytest.raises(ValueError, match="its manifest names no semantic IDs"):
        load_bundle(bundles_dir / "bundle-v1")


def test_quantizer_of_another_digest_is_refused(parts, tmp_path):
    content = torch.from_numpy(parts.content[1:])
    other = ResidualKMeans.fit(content, ResidualKMeansConfig(level_sizes=(5, 5, 5), seed=7))
    made_by = SemanticIds.load(parts.semantic_ids).quantizer_digest
    other.save(parts.semantic_ids / "quantizer")
    with pytest.raises(ValueError, match=f"holds quantiser {other.digest}.*{made_by}"):
        write_bundle(tmp_path / "bundles", parts, version="v1")


def test_directory_without_semantic_ids_is_refused(parts, tmp_path):
    wrong = replace(parts, semantic_ids=tmp_path / "scratch")
    with pytest.raises(ValueError, match="scratch holds no semantic IDs"):
        write_bundle(tmp_path / "bundles", wrong, version="v1")


def test_delta_with_ids_on_a_parent_without_is_refused(tmp_path, bundles_dir, reseal):
    directory, _ = add_fresh(bundles_dir)
    shutil.rmtree(bundles_dir / "bundle-v1")
    write_synthetic_bundle(bundles_dir, "v1", SyntheticSize(semantic_ids=False))
    digest = load_bundle(bundles_dir / "bundle-v1").digest
    reseal(directory, parent={"version": "v1", "digest": digest})
    with pytest.raises(ValueError, match="its parent has no semantic IDs"):
        load_bundle(directory)
