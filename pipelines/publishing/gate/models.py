"""Checks of a bundle's arrays and models: finite numbers, semantic IDs, experts, calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from serving.bundle.manifest import Verdict
from serving.bundle.ranker import RANKER

MIN_ROWS = 10
"""Rows without which a table has no usual size."""


def iterate_arrays(directory: Path, files: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Read every array of floating point, one at a time, with its name."""
    for name in files:
        path = directory / name
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.dtype.kind == "f":
                yield name, torch.from_numpy(np.array(array, np.float32))
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    tensor = tensors.get_tensor(key)
                    if tensor.is_floating_point():
                        yield f"{name}:{key}", tensor


def norm_ratio(table: Tensor) -> float:
    """Longest row against the median of rows that are not 0; 0 for a small table."""
    norms = table[1:].float().norm(dim=1)
    norms = norms[norms > 0]
    if len(norms) < MIN_ROWS:
        return 0.0
    return float(norms.max() / norms.median())


def finite_and_of_usual_size(subject: Subject) -> Iterator[Verdict]:
    """Refuse NaN, infinities and rows far longer than the others, in any array."""
    bundle, broken = subject.challenger, list[str]()
    longest, where = 0.0, "no table"
    for name, array in iterate_arrays(bundle.directory, sorted(bundle.manifest.files)):
        # Popularity gives row 0 minus infinity; missing properties are NaN.
        whole = name.startswith(("popularity/", "properties/"))
        if not whole and not bool(torch.isfinite(array).all()):
            broken.append(name)
        elif not whole and array.ndim == 2 and (ratio := norm_ratio(array)) > longest:
            longest, where = ratio, name
    reason = "arrays of the bundle with NaN or infinite numbers"
    if broken:
        reason += f": {', '.join(broken[:3])}; training diverged or a file was damaged"
    yield at_most("finite numbers", len(broken), 0, reason)
    why = f"longest row of {where} against the median row; far above it, training exploded there"
    yield at_most("length of vectors", longest, subject.config.max_norm_ratio, why)


MIN_ITEMS = 20
"""Items without which codes cannot be spread."""
MIN_CANDIDATES = 1_000
"""Routed candidates an expert without which the load is chance."""
MIN_POSITIVES = 50
CALIBRATION = "calibration.json"


def semantic_ids(subject: Subject) -> Iterator[Verdict]:
    """Refuse IDs whose codes collapsed; those that two items share do not load."""
    found = subject.challenger.semantic_ids
    if found is None:
        return
    codes = found.codes[found.codes[:, 0] >= 0]
    if len(codes) < MIN_ITEMS:
        return
    size = found.ids.level_sizes[0]
    used = perplexity(torch.bincount(codes[:, 0].long(), minlength=size))
    yield at_least(
        "use of the first codes",
        (used - 1) / max(1, min(size, len(codes)) - 1),
        subject.config.min_code_use,
        f"perplexity {used:.1f} of {size} codes over {len(codes)} items; near one code the "
        "codebook collapsed, train it anew with another seed or fewer codes",
    )


def perplexity(counts: Tensor) -> float:
    """2 to the entropy of the use of codes."""
    share = counts[counts > 0].double() / counts.sum()
    return float(2 ** -(share * share.log2()).sum())


def ranker(subject: Subject) -> Iterator[Verdict]:
    """Refuse a ranker with an expert without candidates, or with probabilities far from events."""
    config, path = subject.config, subject.challenger.directory / RANKER / CALIBRATION
    if subject.challenger.ranker is None or not path.is_file():
        return
    measured = json.loads(path.read_text(encoding="utf-8"))
    routing = measured.get("routing") or {}
    if routing and routing["num_candidates"] >= MIN_CANDIDATES * routing["num_experts"]:
        yield at_least(
            "load of each expert",
            min(routing["load"]) * routing["num_experts"],
            config.min_expert_load,
            "smallest share of candidates that an expert of the ranker gets, 1 is even; a dead "
            "expert learns nothing, train with fewer experts",
        )
    for task, found in measured.get("tasks", {}).items():
        if found["observed"] * found["num_labels"] < MIN_POSITIVES:
            continue
        bound = min(config.max_calibration_error, found["observed"])
        why = (
            "expected calibration error of the ranker's probabilities on validation; the bound is "
            "at most the share of positives"
        )
        yield at_most(f"calibration of {task}", found["calibration_error"], bound, why)
        ratio = found["predicted"] / found["observed"]
        away = max(ratio, 1 / ratio) if ratio > 0 else math.inf
        why = f"{found['predicted']:.4f} predicted, {found['observed']:.4f} observed"
        yield at_most(f"level of {task}", away, config.max_calibration_ratio, why)
