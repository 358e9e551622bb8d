"""Find the fastest configuration of each launch on this GPU, or trace the kernels of one.

    python -m tests.benchmarks.kernels.tune [--kernel NAME] [--output recsys/kernels/tuned]
    python -m tests.benchmarks.kernels.tune --trace NAME

Configurations go to the user's cache, where launches find them, unless ``--output`` names a folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from recsys.data.durable import locked, write_durably
from recsys.kernels.choice import (
    FORMAT,
    Config,
    Question,
    cache_folder,
    entries,
    file_name,
    forget,
    source_digest,
)
from tests.benchmarks.kernels.measure import median_ms, trace
from tests.benchmarks.kernels.tune_cases import FAMILIES, Workload, workloads
from tests.recsys.testing.kernels import asking, trying

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best configuration found for a question, with its time and the default's."""

    question: Question
    config: Config
    ms: float
    default_ms: float


def store(found: Iterable[Tuned], device_name: str, folder: Path | None = None) -> Path:
    """Add measurements to a device's file, whole or not at all; processes take turns."""
    folder = cache_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(device_name)
    with locked(path.with_suffix(".lock")):
        entries.cache_clear()
        known = dict(entries(path))
        for one in found:
            known[one.question.name] = {
                "source": source_digest(one.question.kernel),
                "config": one.config,
                "ms": round(one.ms, 6),
                "default_ms": round(one.default_ms, 6),
            }
        document = {"format": FORMAT, "device": device_name, "entries": known}
        write_durably(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    forget()
    return path


def neighbours(config: Config) -> Iterator[Config]:
    """Change one number at a time: ``stages`` by one, all others to half and double."""
    for name, number in config.items():
        near = (number - 1, number + 1) if "stages" in name else (number // 2, number * 2)
        most = {"num_warps": 16, "num_stages": 6}.get(name, 1 << 12)
        for other in near:
            if 1 <= other <= most:
                yield {**config, name: other}


def climb(question: Question, time_ms: Callable[[], float], is_right: Callable[[], bool]) -> Tuned:
    """Move from the default to the fastest neighbour while that is over 1% faster.

    A candidate that does not compile, does not fit the device or computes something else is passed
    over.
    """
    best, times = question.default, {}

    def time_of(config: Config) -> float:
        key = tuple(sorted(config.items()))
        if key not in times:
            times[key] = timed(question.kernel, config, time_ms, is_right)
        return times[key]

    default_ms = time_of(best)
    while True:
        nearest = min(neighbours(best), key=time_of, default=best)
        if not time_of(nearest) < 0.99 * time_of(best):
            break
        best = nearest
    return Tuned(question=question, config=best, ms=time_of(best), default_ms=default_ms)


def timed(
    kernel: str, config: Config, time_ms: Callable[[], float], is_right: Callable[[], bool]
) -> float:
    """Time a kernel with a configuration; infinite if it cannot be used."""
    try:
        with trying(kernel, config):
            return time_ms() if is_right() else math.inf
    except Exception as error:
        # Triton has no one class for tiles that are too large.
        logger.info("kernel_config_failed kernel=%s config=%s reason=%r", kernel, config, error)
        return math.inf


def tuned(case: Workload, device: torch.device) -> list[Tuned]:
    """Tune every launch of a workload that asks for a configuration."""
    prepared = case.prepare(device)
    with asking() as questions:
        prepared.ours[0]()
    different = {question.name: question for question in questions}
    found = [
        climb(
            question,
            lambda: median_ms(prepared.ours),
            lambda: prepared.error() <= prepared.tolerance,
        )
        for question in different.values()
    ]
    return [one for one in found if math.isfinite(one.ms)]


def tune(cases: Sequence[Workload], device: torch.device, output: Path | None) -> None:
    """Tune workloads, and keep each one's result before the next."""
    for case in cases:
        found = tuned(case, device)
        for one in found:
            print(f"{one.question.name}: {one.config}, {one.ms:.4f} ms ({one.default_ms:.4f})")
        if found:
            print(store(found, torch.cuda.get_device_name(device), output))
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=FAMILIES, action="append", help="all by default")
    parser.add_argument("--output", type=Path, help="folder, instead of the user's cache")
    parser.add_argument("--trace", choices=FAMILIES, help="trace this kernel's launches instead")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tuning needs a CUDA GPU, and torch sees none here")
    device = torch.device("cuda")
    if chosen.trace:
        case = [one for one in workloads() if one.kernel == chosen.trace][-1]
        times = trace(case.prepare(device).ours[0], Path("kernel.hatchet"))
        print("\n".join(f"{ms:.4f} ms  {name}" for name, ms in times.items()))
        return
    tune(
        [one for one in workloads() if one.kernel in (chosen.kernel or FAMILIES)],
        device,
        chosen.output,
    )


if __name__ == "__main__":
    main()
