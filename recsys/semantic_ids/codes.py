"""Semantic IDs as an artefact: the codes of each item row.

An item's semantic ID is its code at each of L levels (TIGER, arXiv:2305.05065). IDs are unique. A
level that resolves collisions counts as any other.

Every artefact here is a file of tensors with a description that vouches for them:

    <name>.safetensors   the tensors
    <name>.json          kind, format, what the writer adds, and the sha256 of the tensors

Axes: N item rows (row 0 is padding), L levels, B queries, D width.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

FORMAT = 1


def digest_of(description: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Compute a digest of a description and of the tensors' names, types, shapes and bytes."""
    sha = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        sha.update(f"{name}:{array.dtype}:{array.shape}:".encode())
        sha.update(array.data if array.size else b"")
    return sha.hexdigest()


def write_tensors(
    directory: Path, name: str, tensors: dict[str, Tensor], description: dict[str, Any]
) -> None:
    """Write the two files; ``description`` is JSON and has a ``kind``."""
    directory.mkdir(parents=True, exist_ok=True)
    payload = save({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    document = {**description, "format": FORMAT, "sha256": hashlib.sha256(payload).hexdigest()}
    (directory / f"{name}.safetensors").write_bytes(payload)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    (directory / f"{name}.json").write_text(text, encoding="utf-8")


class _Description(dict[str, Any]):
    """A description whose missing keys are the file's fault."""

    path: Path

    def __missing__(self, key: str) -> Any:
        raise _refusal(self.path, f"it has no {key!r}")


def read_description(directory: Path, name: str) -> dict[str, Any]:
    """Read the JSON part alone."""
    path = directory / f"{name}.json"
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _refusal(path, "it is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise _refusal(path, f"its format is {found}, this version of the package reads {FORMAT}")
    description = _Description(document)
    description.path = path
    return description


def read_tensors(directory: Path, name: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and their description, as ``write_tensors`` wrote them."""
    document = read_description(directory, name)
    path = directory / f"{name}.safetensors"
    if document.get("kind") != kind:
        raise _refusal(path, f"it is of kind {document.get('kind')!r}, expected {kind!r}")
    if not path.is_file():
        raise _refusal(path, "it is missing")
    payload = path.read_bytes()
    digest = hashlib.sha256(payload).hexdigest()
    if digest != document.get("sha256"):
        raise _refusal(path, f"its sha256 is {digest}, {document.get('sha256')} was written")
    try:
        return load(payload), document
    except SafetensorError as error:
        raise _refusal(path, f"it is not a safetensors file ({error})") from error


def _refusal(path: Path, why: str) -> ValueError:
    return ValueError(f"refused {path}: {why}; fetch it again or build the semantic IDs again")


NO_CODE = -1
"""The code, at every level, of the padding row and of rows without a semantic ID."""
MAX_NUM_IDS = 2**62
"""Codes of one ID are looked up as one int64."""
FILE_NAME = "semantic_ids"


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemCodes:
    """Semantic IDs by item row, as models and tries read them.

    ``codes`` [N, L]: -1 where an item has none. ``version`` is that of the published IDs.
    """

    codes: Tensor
    level_sizes: tuple[int, ...]
    version: str


def id_keys(codes: Tensor, level_sizes: Sequence[int]) -> Tensor:
    """Pack codes [N, l] into one int64 each, [N], in the order of the codes.

    Takes the first l levels; codes must be in range.
    """
    keys = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
    for level in range(codes.shape[1]):
        keys = keys * level_sizes[level] + codes[:, level]
    return keys


def check_level_sizes(level_sizes: Sequence[int]) -> None:
    """Refuse empty levels and more IDs than fit an int64."""
    if not level_sizes or min(level_sizes) < 1 or prod(level_sizes) > MAX_NUM_IDS:
        raise ValueError(
            f"level_sizes {tuple(level_sizes)} must be one or more numbers >= 1 whose product is "
            f"at most 2^62; take fewer or smaller levels"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SemanticIds:
    """The published codes of a catalogue, one row per item row.

    ``codes`` [N, L] int32: row 0 and rows without an ID are all -1, the others unique.
    ``level_sizes`` has L entries, a level that resolves collisions included.
    ``quantizer_digest`` is that of their quantiser; ``parent`` the version they follow.
    """

    codes: Tensor
    level_sizes: tuple[int, ...]
    quantizer_digest: str
    parent: str | None = None

    def __post_init__(self) -> None:
        check_level_sizes(self.level_sizes)
        shape_fits = self.codes.ndim == 2 and self.codes.shape[1] == len(self.level_sizes)
        if not shape_fits or self.codes.dtype != torch.int32 or len(self.codes) < 1:
            raise ValueError(
                f"codes {tuple(self.codes.shape)} {self.codes.dtype} must be int32, a row for the "
                f"padding and each item row x {len(self.level_sizes)} levels"
            )
        self._check_range()
        keys, order = id_keys(self.codes[self.item_rows], self.level_sizes).sort(stable=True)
        repeated = keys[1:] == keys[:-1]
        if repeated.any():
            at = int(repeated.int().argmax())
            rows = self.item_rows[order[at : at + 2]].tolist()
            raise ValueError(
                f"item rows {rows[0]} and {rows[1]} share the semantic ID {self.text(rows[0])} "
                f"({int(repeated.sum())} such pairs); resolve_collisions makes IDs unique"
            )

    @classmethod
    def of_items(
        cls,
        item_codes: Tensor,
        *,
        level_sizes: Sequence[int],
        quantizer_digest: str,
        item_rows: Tensor | None = None,
        num_item_rows: int | None = None,
    ) -> SemanticIds:
        """Build from unique codes by item row.

        Args:
            item_codes: [M, L].
            item_rows: Their rows, [M]; None means 1 .. M.
        """
        rows = torch.arange(1, len(item_codes) + 1) if item_rows is None else item_rows.cpu()
        size = num_item_rows or (int(rows.max()) + 1 if len(rows) else 1)
        codes = torch.full((size, len(level_sizes)), NO_CODE, dtype=torch.int32)
        codes[rows] = item_codes.to("cpu", torch.int32)
        sizes = tuple(level_sizes)
        return cls(codes=codes, level_sizes=sizes, quantizer_digest=quantizer_digest)

    def _check_range(self) -> None:
        sizes = torch.tensor(self.level_sizes, device=self.codes.device)
        in_range = ((self.codes >= 0) & (self.codes < sizes)).all(1)
        wrong = ~(in_range | (self.codes == NO_CODE).all(1))
        wrong[0] = (self.codes[0] != NO_CODE).any()
        if wrong.any():
            row = int(wrong.int().argmax())
            raise ValueError(
                f"item row {row} has codes {self.codes[row].tolist()}; each must be in "
                f"[0, {self.level_sizes}), or all {NO_CODE} for row 0 and rows without an ID"
            )

    @property
    def num_levels(self) -> int:
        return len(self.level_sizes)

    @property
    def num_item_rows(self) -> int:
        """Rows of the table, the padding included."""
        return len(self.codes)

    @cached_property
    def item_rows(self) -> Tensor:
        """Rows that have an ID, ascending, [M] int64."""
        return (self.codes[:, 0] != NO_CODE).nonzero().flatten()

    @cached_property
    def version(self) -> str:
        """Digest of the codes, the level sizes, the quantiser and the parent."""
        description = {
            "level_sizes": list(self.level_sizes),
            "quantizer_digest": self.quantizer_digest,
            "parent": self.parent,
        }
        return digest_of(description, {"codes": self.codes})

    def updated(self, rows: Tensor, codes: Tensor) -> SemanticIds:
        """Return the next version: ``rows`` [R] have ``codes`` [R, L]; new rows are appended."""
        size = max(self.num_item_rows, int(rows.max()) + 1 if len(rows) else 1)
        table = torch.full((size, self.num_levels), NO_CODE, dtype=torch.int32)
        table[: self.num_item_rows] = self.codes
        table[rows] = codes.to(table)
        return SemanticIds(
            codes=table,
            level_sizes=self.level_sizes,
            quantizer_digest=self.quantizer_digest,
            parent=self.version,
        )

    def by_item_row(self, id_rows: Tensor) -> ItemCodes:
        """Look up the codes of items whose rows here are given.

        Args:
            id_rows: [N] int64; 0, and rows past the last, have none.
        """
        inside = torch.where(id_rows < self.num_item_rows, id_rows, 0)
        return ItemCodes(
            codes=self.codes[inside], level_sizes=self.level_sizes, version=self.version
        )

    def text(self, item_row: int) -> str:
        """Format an item's ID as ``12-250-3``; empty where the row has none."""
        if not 0 <= item_row < self.num_item_rows:
            raise ValueError(f"item_row {item_row} must be in [0, {self.num_item_rows})")
        codes = self.codes[item_row].tolist()
        return "" if codes[0] == NO_CODE else "-".join(str(code) for code in codes)

    def save(self, directory: Path) -> None:
        description = {
            "kind": FILE_NAME,
            "version": self.version,
            "level_sizes": list(self.level_sizes),
            "quantizer_digest": self.quantizer_digest,
            "parent": self.parent,
            "num_item_rows": self.num_item_rows,
        }
        write_tensors(directory, FILE_NAME, {"codes": self.codes}, description)

    @classmethod
    def load(cls, directory: Path, expected_version: str | None = None) -> SemanticIds:
        """Read IDs and verify their version."""
        tensors, description = read_tensors(directory, FILE_NAME, FILE_NAME)
        ids = cls(
            codes=tensors["codes"],
            level_sizes=tuple(description["level_sizes"]),
            quantizer_digest=description["quantizer_digest"],
            parent=description["parent"],
        )
        if ids.version != description["version"]:
            raise ValueError(
                f"{directory} says it is version {description['version']}, its content is "
                f"{ids.version}; fetch it again"
            )
        if expected_version is not None and ids.version != expected_version:
            raise ValueError(
                f"{directory} holds semantic IDs of version {ids.version}, expected "
                f"{expected_version}; a model, a trie and an index work only with the IDs they "
                "were built with"
            )
        return ids
