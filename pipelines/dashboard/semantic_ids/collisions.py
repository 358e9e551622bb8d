"""Items that were encoded to the same codes, before collisions were resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.dashboard.semantic_ids.versions import FEATURES, STAGE, IdTable, Source
from pipelines.engine.artifacts import Manifest
from pipelines.inputs.tensors import CONTENT_FILE
from pipelines.semantic_ids.artefact import QUANTIZER
from pipelines.semantic_ids.store import FOLDER
from recsys.semantic_ids.codes import NO_CODE, id_keys
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from serving.bundle.semantic_ids import CONTENT_CODES

MOST_ENCODED = 20_000
"""Items that are encoded while a reader waits; more are not."""
MOST_GROUPS = 50
EMBEDDED = "embed_items"


@dataclass(frozen=True, kw_only=True)
class Collision:
    """Items with the same codes."""

    codes: str
    rows: tuple[int, ...]
    """Item rows, ascending."""


@dataclass(frozen=True, kw_only=True)
class Collisions:
    """The largest groups, and how they came about."""

    groups: tuple[Collision, ...]
    num_groups: int
    num_items: int
    """In groups of two or more."""
    words: str
    """What the codes are, or why they are not known."""


def collisions_of(table: IdTable, source: Source) -> Collisions:
    """Find the groups by the content's codes where the run keeps them, else encode them."""
    kept = source.path / (STAGE if source.run.kind == "workspace" else FOLDER) / CONTENT_CODES
    if table.version == source.own and kept.exists():
        codes = np.load(kept, allow_pickle=False)
        words = (
            "The published codes come from behaviour. By content alone, which is how new items are "
            "coded, these items would share theirs."
        )
        return _grouped(codes, table.level_sizes[: codes.shape[1]], words)
    try:
        encoded = _encoded(table, source)
    except (OSError, ValueError, IndexError) as error:
        encoded = f"What was encoded cannot be read: {error}"
    if isinstance(encoded, str):
        return Collisions(groups=(), num_groups=0, num_items=0, words=encoded)
    words = (
        "Their content was encoded to the same codes; all but one of each were moved to the "
        "nearest free ID."
    )
    return _grouped(encoded, table.level_sizes[: encoded.shape[1]], words)


def _encoded(table: IdTable, source: Source) -> NDArray[np.int32] | str:
    """Encode the content of a workspace's items, or say why that cannot be."""
    path: Path = source.path
    if source.run.kind != "workspace" or table.version != source.own:
        return (
            "Codes as encoded are not kept with this version; the page of the run that made it "
            "shows them."
        )
    if len(table.rows) > MOST_ENCODED:
        return (
            f"{len(table.rows):,} items are too many to encode while you wait (at most "
            f"{MOST_ENCODED:,}); the sizes of groups above were measured by the run. "
            "recsys ids report shows examples."
        )
    made, features = Manifest.read(path / EMBEDDED), Manifest.read(path / FEATURES)
    if made is None or features is None or made.inputs.get(FEATURES) != features.output:
        return "The content that was encoded is no longer in the workspace."
    quantizer = ResidualKMeans.load(path / STAGE / QUANTIZER)
    vectors = np.load(path / EMBEDDED / CONTENT_FILE, mmap_mode="r", allow_pickle=False)
    rows = np.sort(table.rows)
    content = torch.from_numpy(np.array(vectors[rows, : quantizer.dim], np.float32))
    codes = np.full((len(vectors), len(quantizer.level_sizes)), NO_CODE, np.int32)
    codes[rows] = quantizer.encode(content).numpy()
    return codes


def _grouped(codes: NDArray[np.int32], sizes: tuple[int, ...], words: str) -> Collisions:
    """Group item rows by equal codes [N, l], the largest groups first."""
    rows = np.flatnonzero(codes[:, 0] != NO_CODE)
    keys = id_keys(torch.from_numpy(np.asarray(codes)[rows]), sizes).numpy()
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    shared = np.flatnonzero(counts > 1)
    largest = shared[np.argsort(-counts[shared], kind="stable")][:MOST_GROUPS]
    groups = []
    for place in largest.tolist():
        members = rows[order[starts[place] : starts[place] + counts[place]]]
        text = "-".join(map(str, codes[members[0]].tolist()))
        groups.append(Collision(codes=text, rows=tuple(members.tolist())))
    return Collisions(
        groups=tuple(groups),
        num_groups=len(shared),
        num_items=int(counts[shared].sum()),
        words=words,
    )
