"""Keep what an encoder made of a text, so that each distinct text is encoded once, ever.

    <cache_dir>/<encoder name>/shard-<id>.npy     [rows, D] float16, written first
    <cache_dir>/<encoder name>/shard-<id>.json    its keys and its sha256; makes the shard count

A key is the sha256 of encoder name and text, so a changed text is a new key and the others stay.
Shards are only ever added, under names made of their keys: a killed run loses the shard it was
at, and two runs at once do no harm. Half precision keeps a cosine to about 1e-3 at half the disk;
the first run returns the rounded vectors too, so that it equals every later one.

Axes: n texts, D width.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.content.encoder import Encoder, Vectors, normalized
from recsys.data.durable import write_durably

logger = logging.getLogger(__name__)
Halves = NDArray[np.float16]


def encode_cached(
    texts: Sequence[str],
    encoder: Encoder,
    cache_dir: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Vectors:
    """Encode texts; vectors that the cache lacks are added to it.

    Returns:
        [n, D] float32, rows of unit length, or zeros for texts without words.
    """
    folder = folder_of(encoder, cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    keys = [text_key(encoder.name, text) for text in texts]
    known = _read_shards(folder, encoder, wanted=set(keys))

    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    # Texts of like length share a shard, so that the encoder pads little.
    todo = sorted(missing, key=lambda key: (-len(missing[key]), key))
    size = encoder.shard_rows
    shards = [todo[begin : begin + size] for begin in range(0, len(todo), size)]

    def encode(shard: list[str]) -> Halves:
        rows = encoder.encode([missing[key] for key in shard]).astype(np.float16)
        _write_shard(folder, encoder, shard, rows)
        return rows

    encoded, number = 0, getattr(encoder, "concurrency", 1)
    # Whatever fails, shards in flight are waited for and written: they may be paid for.
    with ThreadPoolExecutor(number) as executor:
        made = executor.map(encode, shards) if number > 1 else map(encode, shards)
        for shard, rows in zip(shards, made, strict=True):
            known.update(zip(shard, rows, strict=True))
            encoded += len(shard)
            if progress is not None:
                progress(encoded, len(todo))
    logger.info(
        "encoded texts", extra={"encoder": encoder.name, "texts": len(texts), "encoded": len(todo)}
    )
    if not keys:
        return np.zeros((0, encoder.dim), np.float32)
    return normalized(np.stack([known[key] for key in keys]))


def missing_texts(texts: Sequence[str], encoder: Encoder, cache_dir: Path) -> list[str]:
    """List the texts with words that the cache lacks, each once."""
    keys = {text_key(encoder.name, text): text for text in texts if text.strip()}
    known = _read_shards(folder_of(encoder, cache_dir), encoder, wanted=set(keys))
    return [text for key, text in keys.items() if key not in known]


def folder_of(encoder: Encoder, cache_dir: Path) -> Path:
    """Return the folder of an encoder's shards."""
    return cache_dir / re.sub(r"[^A-Za-z0-9._-]", "_", encoder.name)


def text_key(encoder_name: str, text: str) -> str:
    """Return the key of a text under an encoder."""
    return hashlib.sha256(f"{encoder_name}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _read_shards(folder: Path, encoder: Encoder, wanted: set[str]) -> dict[str, Halves]:
    """Collect the wanted rows; a damaged shard is passed over, its texts are encoded again."""
    known: dict[str, Halves] = {}
    for index in sorted(folder.glob("shard-*.json")):
        try:
            document = json.loads(index.read_bytes())
            keys, digest = document["keys"], document["sha256"]
            if wanted.isdisjoint(keys):
                continue
            content = index.with_suffix(".npy").read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError("sha256 does not match")
            rows: Halves = np.load(io.BytesIO(content), allow_pickle=False)
            if rows.shape != (len(keys), encoder.dim):
                raise ValueError(f"{rows.shape} for {len(keys)} texts")
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("damaged shard", extra={"shard": str(index), "reason": str(error)})
            continue
        known.update((key, row) for key, row in zip(keys, rows, strict=True) if key in wanted)
    return known


def _write_shard(folder: Path, encoder: Encoder, keys: list[str], rows: Halves) -> None:
    if rows.shape != (len(keys), encoder.dim) or not np.isfinite(rows).all():
        raise ValueError(
            f"encoder {encoder.name!r} gave {rows.shape} for {len(keys)} texts, expected "
            f"{(len(keys), encoder.dim)} finite values; check the model's weights"
        )
    stem = "shard-" + hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
    content = io.BytesIO()
    np.save(content, rows, allow_pickle=False)
    document = {
        "encoder": encoder.name,
        "keys": keys,
        "sha256": hashlib.sha256(content.getvalue()).hexdigest(),
    }
    write_durably(folder / f"{stem}.npy", content.getvalue())
    write_durably(folder / f"{stem}.json", json.dumps(document))
