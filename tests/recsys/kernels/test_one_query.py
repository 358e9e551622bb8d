"""The compiled functions are refused, or not there, for a reason that is told."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask, OneList, best_of_one
from recsys.kernels.choice import without
from recsys.kernels.one_query import library, op

pytestmark = pytest.mark.numerics


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RECSYS_KERNEL_CACHE", str(tmp_path / "kernels"))
    library.load_library.cache_clear()
    yield tmp_path / "kernels"
    library.load_library.cache_clear()


def compilers(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """Leave one compiler, or none, on PATH."""
    folder.mkdir()
    if script is not None:
        (folder / "cc").write_text(script)
        (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_compiled_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.load_library().reason == ""
    (kept,) = cache.iterdir()
    library.load_library.cache_clear()
    compilers(cache.parent / "bin", monkeypatch, None)
    assert library.load_library().reason == ""
    kept.chmod(stat.S_IMODE(kept.stat().st_mode) | stat.S_IWOTH)
    library.load_library.cache_clear()
    assert "no C compiler" in library.load_library().reason, "others could have altered it"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "there is no C compiler on PATH, install a C compiler (cc, gcc, clang)"),
        ("#!/bin/sh\necho unknown option >&2\nexit 1\n", "failed (unknown option)"),
        ("#!/bin/sh\nexit 0\n", "OSError"),
    ],
)
def test_without_a_compiler_numpy_answers(
    cache: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    compilers(cache.parent / "bin", monkeypatch, script)
    found = library.load_library()
    assert found.functions is None
    assert reason in found.reason
    assert found.reason.endswith(library.REFERENCE)
    monkeypatch.setattr(op, "_loaded", [])
    assert op.best_allowed(np.ones(3, np.float32), ItemMask.all(3), 1) is None


def test_a_home_that_cannot_be_written_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file where the folder would be")
    assert library.load_library().reason == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_loaded(cache: Path) -> None:
    library.load_library()
    (kept,) = cache.iterdir()
    os.chown(kept, 12345, 12345)
    assert not library.is_trusted(kept)


@pytest.mark.parametrize("seed", range(40))
def test_best_and_nearest_are_ranked_with_the_rule_for_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, dim = int(rng.integers(2, 900)), int(rng.integers(1, 40))
    vectors = torch.from_numpy(rng.integers(-2, 3, (size, dim)).astype(np.float32))
    query = torch.from_numpy(rng.integers(-2, 3, dim).astype(np.float32))
    mask, k = ItemMask(rng.random(size) < rng.random()), int(rng.integers(1, 400))
    scores = (vectors @ query).numpy()
    scores[rng.random(size) < 0.1] = -0.0
    found = op.best_allowed(scores, mask, k)
    near = op.nearest(vectors, query, mask, k)
    for one, of in ((found, scores), (near, (vectors @ query).numpy())):
        blanked = of.copy()
        mask.blank(blanked)
        expected = best_of_one(torch.from_numpy(blanked), k)
        assert isinstance(one, OneList)
        assert one.item_rows.tolist() == expected.item_rows.tolist()
        assert one.scores.tolist() == expected.scores.tolist()


def test_what_is_no_number_goes_to_the_form_that_says_so() -> None:
    scores, mask = np.array([0, 1, np.nan], np.float32), ItemMask.all(3)
    assert op.best_allowed(scores, mask, 2) is None
    assert op.best_allowed(scores[:2], mask, 2) is None, "a mask of another catalogue"
    vectors = torch.tensor([[0.0], [1.0], [2.0]])
    assert op.nearest(vectors, torch.tensor([torch.inf]), mask, 2) is None
    assert op.nearest(vectors, torch.tensor([1.0, 2.0]), mask, 2) is None
    table = torch.ones(3, 3)
    similar = op.SimilarOfOne(table, np.empty(0, np.int64), 1e-6, torch.ones(1))
    assert op.list_of_one(similar.step(torch.tensor([3])), mask, 2) is None
    with without("one_query"):
        assert op.best_allowed(scores[:2], ItemMask.all(2), 1) is None
