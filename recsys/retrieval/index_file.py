"""The file of a FAISS index and its JSON, checked before faiss sees a byte.

faiss trusts what it reads, so a file is refused here first: by its description, its length, its
header (which names the sizes that faiss would allocate) and its digest.

    items.faiss          faiss's own format
    items.faiss.json     IndexFileMeta, with a digest over itself
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from recsys.data.durable import digest_once, write_durably

FORMAT = 1
FOURCC = {"flat": b"IxFI", "hnsw": b"IHNf", "ivf_sq8": b"IxRF"}
# fourcc, width, rows, two unused words, is_trained, metric (0 is the inner product).
HEADER = struct.Struct("<4siqqqBi")


@dataclass(frozen=True, kw_only=True)
class IndexFileMeta:
    """Description of an index file, for a loader before it reads."""

    kind: str
    dim: int
    num_item_rows: int
    effort: int
    masked_exact_max_rows: int
    num_bytes: int
    sha256: str
    metric: str = "inner_product"
    format: int = FORMAT


def meta_path(path: Path) -> Path:
    """Return the JSON of an index file."""
    return path.with_name(path.name + ".json")


def write_meta(path: Path, meta: IndexFileMeta) -> None:
    """Write the description of the index file at ``path``."""
    document = {**asdict(meta), "meta_sha256": _digest(asdict(meta))}
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    write_durably(meta_path(path), text)


def read_verified_meta(path: Path, sha256: str | None) -> IndexFileMeta:
    """Read the description of an index file and hold the file against it."""
    for part in (path, meta_path(path)):
        if not part.is_file():
            raise ValueError(f"{part} is missing; run the build_index stage again")
    meta = _read_meta(meta_path(path))
    num_bytes = path.stat().st_size
    if num_bytes != meta.num_bytes:
        raise _refusal(path, f"it has {num_bytes} bytes, {meta.num_bytes} were written")
    check_header(path, meta)
    digest = digest_once(path)
    if digest != meta.sha256 or (sha256 is not None and digest != sha256):
        raise _refusal(path, f"its sha256 is {digest}, expected {sha256 or meta.sha256}")
    return meta


def check_header(path: Path, meta: IndexFileMeta) -> None:
    """Compare the sizes that the header claims with the description and the file's length."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise _refusal(path, f"it ends within its header, after {len(head)} bytes")
    fourcc, dim, num_rows, _, _, is_trained, metric = HEADER.unpack(head)
    if fourcc != FOURCC[meta.kind]:
        raise _refusal(
            path, f"its type is {fourcc!r}, a {meta.kind} index has {FOURCC[meta.kind]!r}"
        )
    if (dim, num_rows) != (meta.dim, meta.num_item_rows):
        raise _refusal(
            path,
            f"its header claims {num_rows} rows x {dim}, its description "
            f"{meta.num_item_rows} x {meta.dim}",
        )
    # Every kind stores at least two bytes (fp16) per coordinate.
    if dim < 1 or num_rows < 1 or 2 * dim * num_rows > meta.num_bytes:
        raise _refusal(path, f"{num_rows} rows x {dim} do not fit in {meta.num_bytes} bytes")
    if (is_trained, metric) != (1, 0):
        raise _refusal(path, f"is_trained is {is_trained} and metric {metric}, expected 1 and 0")


def _read_meta(path: Path) -> IndexFileMeta:
    try:
        document = json.loads(path.read_bytes())
        names = {field.name for field in fields(IndexFileMeta)}
        if not isinstance(document, dict) or set(document) != {*names, "meta_sha256"}:
            raise _refusal(path, f"it must hold {sorted(names)} and meta_sha256")
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON ({error})") from error
    expected = document.pop("meta_sha256")
    if _digest(document) != expected:
        raise _refusal(path, "its digest over itself does not match")
    wrong = [f.name for f in fields(IndexFileMeta) if type(document[f.name]).__name__ != f.type]
    if wrong:
        raise _refusal(path, f"{wrong} have values of another type")
    meta = IndexFileMeta(**document)
    if meta.effort < 1 or meta.masked_exact_max_rows < 0:
        raise _refusal(path, f"effort {meta.effort} must be >= 1, masked_exact_max_rows >= 0")
    if meta.format != FORMAT or meta.kind not in FOURCC or meta.metric != "inner_product":
        raise _refusal(
            path,
            f"format {meta.format}, kind {meta.kind!r}, metric {meta.metric!r} are not readable "
            f"here (format {FORMAT}, kinds {sorted(FOURCC)}, inner_product)",
        )
    return meta


def _digest(document: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _refusal(path: Path, why: str) -> ValueError:
    return ValueError(f"refused {path}: {why}; fetch it again or run the build_index stage again")
