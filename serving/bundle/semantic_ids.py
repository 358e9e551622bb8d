"""Semantic IDs of a bundle's items.

    semantic_ids/semantic_ids.*     codes by id row               recsys/semantic_ids/codes.py
    semantic_ids/id_rows.npy        id row of each item row, 0 without an ID, [N]
    semantic_ids/content_codes.npy  codes by content alone, [N, L'], if IDs may differ from them
    quantizer/                      encodes new items             recsys/semantic_ids/rq_kmeans.py

Every run numbers item rows afresh, while an item keeps its published ID; so IDs are stored by id
row, which is never given to another item. A delta holds ``semantic_ids/codes.npy`` [R, L]
and ``id_rows.npy`` [R] of its new items, and ``follows.json`` where they were appended in several
steps; the version they lead to is computed and compared.

Axes: N item rows, R new items, L levels.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.semantic_ids.codes import FILE_NAME, NO_CODE, ItemCodes, SemanticIds, read_description
from serving.bundle.arrays import check_rows, load_array, load_rows, reading
from serving.bundle.manifest import SemanticIdSource

Rows = NDArray[np.int64]
FOLDER = "semantic_ids"
QUANTIZER = "quantizer"
ID_ROWS = "id_rows.npy"
CODES = "codes.npy"
CONTENT_CODES = "content_codes.npy"
FOLLOWS = "follows.json"


def copy_semantic_ids(source: Path, bundle: Path) -> None:
    """Copy the IDs of an artefact into a bundle that is being written.

    Args:
        source: Holds ``semantic_ids.*``, ``id_rows.npy`` and ``quantizer/``, as in a bundle.
    """
    if not (source / f"{FILE_NAME}.json").is_file():
        raise ValueError(f"{source} holds no semantic IDs; run its stage first, or leave them out")
    (bundle / FOLDER).mkdir()
    for name in (f"{FILE_NAME}.json", f"{FILE_NAME}.safetensors", ID_ROWS, CONTENT_CODES):
        if name != CONTENT_CODES or (source / name).exists():
            shutil.copyfile(source / name, bundle / FOLDER / name)
    shutil.copytree(source / QUANTIZER, bundle / QUANTIZER, copy_function=shutil.copyfile)


class NewIds(NamedTuple):
    """IDs of the new items of a delta."""

    codes: Tensor
    """[R, L] int32, -1 where an item has none."""
    id_rows: Rows
    """[R], 0 where an item has none."""
    follows: str | None = None
    """Version that the last of them were appended to, where others were appended before."""

    @classmethod
    def none(cls, num_items: int, num_levels: int) -> NewIds:
        """Leave new items without IDs."""
        codes = torch.full((num_items, num_levels), NO_CODE, dtype=torch.int32)
        return cls(codes, np.zeros(num_items, np.int64))

    @classmethod
    def load(cls, delta: Path) -> NewIds | None:
        """Read those of a delta's directory; None where it has none."""
        folder = delta / FOLDER
        if not folder.is_dir():
            return None
        codes = torch.from_numpy(load_array(folder / CODES, np.int32, 2))
        follows = None
        if (folder / FOLLOWS).exists():
            with reading(folder / FOLLOWS):
                follows = str(json.loads((folder / FOLLOWS).read_text())["version"])
        return cls(codes, load_rows(folder / ID_ROWS), follows)

    def save(self, delta: Path) -> None:
        folder = delta / FOLDER
        folder.mkdir()
        np.save(folder / CODES, self.codes.numpy())
        np.save(folder / ID_ROWS, self.id_rows)
        if self.follows is not None:
            (folder / FOLLOWS).write_text(json.dumps({"version": self.follows}) + "\n")


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSemanticIds:
    """The IDs of all item rows of a bundle."""

    ids: SemanticIds
    """By id row; also of items that are no longer in the catalogue, so that none is reused."""
    id_rows: Rows
    """Id row of each item row, [N]; 0 without an ID."""
    quantizer_directory: Path
    from_content: Tensor | None = None
    """Codes by content alone, [N, L'] int32, -1 without; None where the IDs are these."""

    @classmethod
    def load(cls, bundle: Path, version: str | None = None) -> Self:
        """Read the IDs of a bundle's directory."""
        ids = SemanticIds.load(bundle / FOLDER, version)
        found = cls(
            ids=ids,
            id_rows=load_rows(bundle / FOLDER / ID_ROWS),
            quantizer_directory=bundle / QUANTIZER,
            from_content=_load_content_codes(bundle / FOLDER / CONTENT_CODES, ids),
        )
        found._check_id_rows(bundle / FOLDER / ID_ROWS)
        # Its tensors are read on first use.
        with reading(found.quantizer_directory):
            made_by = read_description(found.quantizer_directory, QUANTIZER)["digest"]
        if made_by != ids.quantizer_digest:
            raise ValueError(
                f"{found.quantizer_directory} holds quantiser {made_by}, semantic IDs "
                f"{ids.version} were made by {ids.quantizer_digest}; release the bundle again"
            )
        return found

    def _check_id_rows(self, path: Path) -> None:
        rows, limit = self.id_rows, self.ids.num_item_rows
        if len(rows) == 0 or rows[0] != 0 or not 0 <= rows.min() <= rows.max() < limit:
            raise ValueError(
                f"{path} must begin with 0 (padding) and hold id rows in [0, {limit}); release "
                "the bundle again"
            )
        given = np.sort(rows[rows > 0])
        if (twice := given[1:][given[1:] == given[:-1]]).size:
            raise ValueError(
                f"{path} gives id row {twice[0]} to two items; an ID belongs to one item, release "
                "the bundle again"
            )
        if self.from_content is not None:
            check_rows(path.parent / CONTENT_CODES, (len(self.from_content),), (len(rows),))

    @property
    def content_codes(self) -> Tensor:
        """Codes by content alone, by item row, [N, L']; -1 without."""
        return self.codes if self.from_content is None else self.from_content

    @cached_property
    def item_codes(self) -> ItemCodes:
        """The IDs by item row."""
        return self.ids.by_item_row(torch.from_numpy(self.id_rows))

    @property
    def codes(self) -> Tensor:
        """Codes by item row, [N, L] int32; -1 without an ID."""
        return self.item_codes.codes

    @property
    def version(self) -> str:
        return self.ids.version

    @property
    def num_item_rows(self) -> int:
        return len(self.id_rows)

    @cached_property
    def source(self) -> SemanticIdSource:
        """Describe them as the manifest does."""
        return SemanticIdSource(
            version=self.version,
            quantizer_digest=self.ids.quantizer_digest,
            level_sizes=list(self.ids.level_sizes),
            num_with_id=int((self.codes[:, 0] != NO_CODE).sum()),
        )

    def text(self, item_row: int) -> str:
        """Write an item's ID as ``12-250-3``; empty where it has none."""
        return self.ids.text(int(self.id_rows[item_row]))

    def texts(self, item_rows: Sequence[int]) -> list[str | None]:
        """Write the IDs of several items; None where one has none."""
        codes = self.codes[torch.tensor(item_rows, dtype=torch.int64)].tolist()
        return [None if one[0] == NO_CODE else "-".join(map(str, one)) for one in codes]

    def since(self, num_item_rows: int) -> NewIds:
        """Return the IDs of the item rows from one on, as one step of appending."""
        return NewIds(self.codes[num_item_rows:], self.id_rows[num_item_rows:], self.ids.parent)

    def extended(self, new: NewIds) -> ItemSemanticIds:
        """Append new items; one that comes back to the catalogue has its earlier ID."""
        codes, rows = new.codes, torch.from_numpy(new.id_rows)
        given = rows > 0
        if codes.shape != (len(rows), self.ids.num_levels) or bool((rows < 0).any()):
            raise ValueError(
                f"codes {tuple(codes.shape)} and id_rows {tuple(rows.shape)} of new items must be "
                f"[R, {self.ids.num_levels}] and [R], rows >= 0"
            )
        if taken := set(rows[given].tolist()) & set(self.id_rows.tolist()):
            raise ValueError(f"id row {min(taken)} is given to a new item and belongs to another")
        if bool(((codes[:, 0] != NO_CODE) != given).any()):
            raise ValueError("a new item has an ID without an id row, or an id row without an ID")
        from_content = self.from_content
        if from_content is not None:
            # New items are encoded by content.
            from_content = torch.cat([from_content, codes[:, : from_content.shape[1]]])
        ids = with_codes(self.ids, rows[given], codes[given])
        if new.follows is not None and ids is not self.ids:
            ids = replace(ids, parent=new.follows)
        extended = type(self)(
            ids=ids,
            id_rows=np.concatenate([self.id_rows, new.id_rows]),
            quantizer_directory=self.quantizer_directory,
            from_content=from_content,
        )
        extended._check_id_rows(self.quantizer_directory.parent / FOLDER / ID_ROWS)
        return extended


def _load_content_codes(path: Path, ids: SemanticIds) -> Tensor | None:
    """Read the codes by content alone; None where IDs are of content."""
    if not path.exists():
        return None
    codes = torch.from_numpy(np.array(load_array(path, np.int32, 2)))
    sizes = torch.tensor(ids.level_sizes[: codes.shape[1]], dtype=torch.int32)
    if len(sizes) != codes.shape[1] or bool(((codes < NO_CODE) | (codes >= sizes)).any()):
        raise ValueError(
            f"{path} must hold codes of levels {ids.level_sizes}; release the bundle again"
        )
    return codes


def with_codes(ids: SemanticIds, rows: Tensor, codes: Tensor) -> SemanticIds:
    """Append known codes, as recsys.semantic_ids.lifecycle.append assigned them.

    Args:
        rows: Id rows of the codes, [R] int64.
        codes: [R, L] int32.

    Returns:
        The version that follows; ``ids`` itself where it has all of them.
    """
    before = ids.by_item_row(rows).codes
    published = before[:, 0] != NO_CODE
    moved = published & (before != codes).any(1)
    if moved.any():
        row = int(rows[moved][0])
        raise ValueError(f"id row {row} has the ID {ids.text(row)}, and a published ID never moves")
    return ids if bool(published.all()) else ids.updated(rows, codes)


def check_source(
    directory: Path, found: ItemSemanticIds | None, says: SemanticIdSource | None
) -> None:
    """Compare the IDs that a directory leads to with its manifest."""
    if says is None and (found is not None or (directory / FOLDER).exists()):
        raise ValueError(f"{directory}: its manifest names no semantic IDs; release it again")
    if found is None or says is None:
        if says is not None:
            raise ValueError(
                f"{directory} is to have semantic IDs {says.version}, but its parent has no "
                "semantic IDs; make it again"
            )
        return
    source = found.source
    for name, value in source.model_dump().items():
        if value != (said := getattr(says, name)):
            raise ValueError(
                f"{directory} leads to semantic IDs with {name} {value}, its manifest says {said}; "
                "its parts come from different runs, release it again"
            )
