"""Measurements of the machine that a plan has to fit: how fast it multiplies and encodes texts.

What is encoded here goes into the cache of embeddings, so no text is encoded, or paid for, twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.config.content import ContentConfig
from pipelines.engine.artifacts import cache_dir
from pipelines.engine.memory import GIB, free_memory
from pipelines.inputs.content_models import describe_item, make_encoder
from recsys.content.embedding_cache import encode_cached, missing_texts
from recsys.fitting.spec import device_named
from serving.settings import usable_cpus

SIZE = 1_024
"""Rows and columns of the matrices that are multiplied."""
SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of the trainings."""

    device: str
    """``cpu``, or the name of a GPU."""
    num_cpus: int
    memory_bytes: int
    """Memory that this process may still take."""
    flops: float
    """Floating-point operations a second of a float32 matrix product, measured."""

    @property
    def has_gpu(self) -> bool:
        return self.device != "cpu"

    def words(self) -> str:
        """Describe it in a line."""
        parts = [f"{self.num_cpus} CPUs", f"{self.memory_bytes / GIB:.1f} GiB of free memory"]
        if self.has_gpu:
            parts.insert(0, self.device)
        return ", ".join([*parts, f"{self.flops / 1e9:,.0f} GFLOP/s measured"])


def this_machine(device: str = "auto") -> Machine:
    """Look at this machine; takes a quarter of a second."""
    place = device_named(device)
    return Machine(
        device="cpu" if place.type == "cpu" else torch.cuda.get_device_name(place),
        num_cpus=usable_cpus(),
        memory_bytes=free_memory(),
        flops=measured_flops(place),
    )


def measured_flops(device: torch.device) -> float:
    """Multiply matrices for a fifth of a second."""
    left = torch.randn(SIZE, SIZE, device=device)
    right = left.T.contiguous()

    def multiply() -> None:
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    begin, times = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < SECONDS:
        multiply()
        times += 1
    return 2 * SIZE**3 * times / passed


BATCHES = (8, 64, 128)
"""Texts that are timed one batch after the other, 200 in all; the first one also loads weights."""
ENOUGH_SECONDS = 5.0
"""Seconds after which no further batch is timed."""


@dataclass(frozen=True, kw_only=True)
class TimedEncoder:
    """An encoder and its seconds for the texts of a catalogue."""

    name: str
    dim: int
    seconds: float
    """Time to load it and to encode every text that is not in the cache."""


def time_encoder(items: Path, content: ContentConfig) -> TimedEncoder | None:
    """Time the configured encoder on up to 200 texts of a catalogue; None without an encoder."""
    begin = time.perf_counter()
    encoder = make_encoder(content)
    if encoder is None:
        return None
    cache = cache_dir("embeddings")
    rows = pl.read_parquet(items).iter_rows(named=True)
    missing = missing_texts([describe_item(row, content) for row in rows], encoder, cache)
    drawn = np.random.default_rng(0).permutation(len(missing))
    done, start = 0, time.perf_counter()
    for size in BATCHES:
        batch = [missing[place] for place in drawn[done : done + size]]
        last = time.perf_counter()
        if not batch or last - start > ENOUGH_SECONDS:
            break
        encode_cached(batch, encoder, cache)
        done += len(batch)
        each = (time.perf_counter() - last) / len(batch)
    left = (len(missing) - done) * each if done else 0.0
    load = start - begin
    return TimedEncoder(name=encoder.name, dim=encoder.dim, seconds=load + left)
