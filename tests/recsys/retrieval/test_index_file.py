"""What lies on disk may be cut, altered or crafted; none of it may reach faiss or crash."""

import json
import resource
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.durable import digest_of_file
from recsys.retrieval.faiss_index import (
    FaissIndex,
    IndexFileMeta,
    build_index,
    meta_path,
    read_verified_meta,
    write_meta,
)
from recsys.retrieval.faiss_library import FaissIndexConfig

KINDS = ("flat", "ivf_sq8")


@pytest.fixture(params=KINDS)
def saved(request, tmp_path) -> Path:
    vectors = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "items.faiss"
    build_index(vectors, FaissIndexConfig(kind=request.param)).save(path)
    return path


def refused(path: Path, said: str, **expected: str) -> None:
    with pytest.raises(ValueError, match=said):
        FaissIndex.load(path, **expected)


def bless(path: Path) -> None:
    """Make the description fit the altered file, as one who crafts a file would."""
    meta = read_meta(path)
    write_meta(path, replace(meta, num_bytes=path.stat().st_size, sha256=digest_of_file(path)))


def read_meta(path: Path) -> IndexFileMeta:
    document = json.loads(meta_path(path).read_text())
    del document["meta_sha256"]
    return IndexFileMeta(**document)


def test_a_cut_file_is_refused_whether_or_not_its_description_fits(saved):
    whole, meta = saved.read_bytes(), meta_path(saved).read_bytes()
    for end in (0, 3, 40, *range(4096, len(whole), 4096)):
        saved.write_bytes(whole[:end])
        meta_path(saved).write_bytes(meta)
        refused(saved, f"it has {end} bytes, {len(whole)} were written")
        bless(saved)
        refused(saved, r"refused .*items\.faiss")


def test_flipped_bits_and_another_digest_than_the_manifests_are_refused(saved):
    random = np.random.default_rng(1)
    for path in (saved, meta_path(saved)):
        whole = path.read_bytes()
        for position in random.integers(0, len(whole), 60):
            altered = bytearray(whole)
            altered[position] ^= 1 << random.integers(0, 8)
            path.write_bytes(altered)
            refused(saved, "refused")
        path.write_bytes(whole)
    digest = digest_of_file(saved)
    read_verified_meta(saved, digest)
    refused(saved, f"its sha256 is {digest}, expected 00", sha256="00" * 32)


def test_a_missing_part_is_named(saved):
    for part in (meta_path(saved), saved):
        content = part.read_bytes()
        part.unlink()
        refused(saved, f"{part.name} is missing; run the build_index stage")
        part.write_bytes(content)


def test_a_description_of_another_index_is_refused(saved):
    meta = read_meta(saved)
    for field, value in (
        *(("format", 2), ("kind", "lsh"), ("kind", []), ("metric", "l2"), ("dim", 9)),
        *(("num_item_rows", 499), ("effort", 0), ("effort", "9")),
    ):
        write_meta(saved, replace(meta, **{field: value}))
        refused(saved, "refused")
    another = KINDS[KINDS.index(meta.kind) - 1]
    write_meta(saved, replace(meta, kind=another))
    refused(saved, f"a {another} index has b'")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """256 MiB more than the process has, and no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
def test_crafted_sizes_are_refused_without_allocating_them(saved):
    """Each number of the header, and what follows it, claims sizes far beyond the file."""
    whole, refused = saved.read_bytes(), 0
    for offset in range(4, 300, 4):
        for size in (1 << 40, (1 << 62) + 5):
            saved.write_bytes(whole[:offset] + struct.pack("<q", size) + whole[offset + 8 :])
            bless(saved)
            try:
                FaissIndex.load(saved)
            except ValueError:
                refused += 1
    # Many places hold vectors or probabilities, where any bits are legal.
    assert refused >= 12
