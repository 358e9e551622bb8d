"""Health of a bundle's models: semantic IDs, experts and calibration of the ranker, size.

Axes: N item rows, L levels, E experts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from recsys.layers.moe.routing import expert_use
from recsys.semantic_ids.quality import code_counts, invalid_share
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict
from serving.bundle.ranker import RANKER
from serving.bundle.semantic_ids import ItemSemanticIds

MIN_ITEMS = 20
"""Items without which codes cannot be spread."""
MIN_CANDIDATES = 1_000
"""Routed candidates an expert without which the load is chance."""
MIN_POSITIVES = 50
CALIBRATION = "calibration.json"
MEGABYTE = 1 << 20
SMALL = 512 * MEGABYTE
"""Bytes below which a bundle fits any server."""


def size_of(subject: Subject) -> Iterator[Verdict]:
    """Hold the bundle's bytes against the champion's; a small one may grow as it likes."""
    ratio = subject.config.max_size_ratio
    if subject.champion is None or not ratio:
        return
    new, old = (
        sum(file.size for file in one.manifest.files.values())
        for one in (subject.challenger, subject.champion)
    )
    yield at_most(
        "size",
        new / max(1, old) if new > SMALL else 0,
        ratio,
        f"{new / MEGABYTE:.1f} MB, of the champion {old / MEGABYTE:.1f} MB",
    )


def semantic_ids(subject: Subject) -> Iterator[Verdict]:
    """Refuse IDs that are none, that two items share, or whose codes collapsed."""
    found = subject.challenger.semantic_ids
    if found is None:
        return
    codes = found.codes
    have = codes[:, 0] >= 0
    sizes = torch.tensor(found.ids.level_sizes)
    outside = ((codes[have] < 0) | (codes[have] >= sizes)).any(1)
    repeated = int(have.sum()) - len(torch.unique(codes[have], dim=0))
    invalid = (int(outside.sum()) + repeated) / max(1, int(have.sum()))
    yield at_most(
        "invalid semantic IDs",
        max(invalid, _generated_invalid(subject.challenger, codes)),
        0,
        "share of IDs that name no item, or two",
    )
    if int(have.sum()) < MIN_ITEMS:
        return
    yield from _code_use(subject, codes[have], found)


def _generated_invalid(bundle: Bundle, codes: Tensor) -> float:
    """Share of the items that the trie of the generative model leads to and that have no ID."""
    if bundle.generative is None:
        return 0.0
    states = bundle.generative.trie.walk(codes[codes[:, 0] >= 0])
    return invalid_share(bundle.generative.trie.item_rows(states), codes) or 0.0


def _code_use(subject: Subject, codes: Tensor, found: ItemSemanticIds) -> Iterator[Verdict]:
    sizes, config = found.ids.level_sizes, subject.config
    used = [perplexity(counts) for counts in code_counts(codes, sizes)]
    yield at_least(
        "use of the first codes",
        (used[0] - 1) / max(1, min(sizes[0], len(codes)) - 1),
        config.min_code_use,
        f"perplexity {used[0]:.1f} of {sizes[0]} codes over {len(codes)} items; near one code the "
        "codebook collapsed, train it anew with another seed or fewer codes",
    )
    before = None if subject.champion is None else subject.champion.semantic_ids
    if before is None or before.ids.level_sizes != sizes:
        return
    old_codes = before.codes[before.codes[:, 0] >= 0]
    if len(old_codes) < MIN_ITEMS:
        return
    old = [perplexity(counts) for counts in code_counts(old_codes, sizes)]
    ratios = [new / one for new, one in zip(used, old, strict=True)]
    level = int(np.argmin(ratios))
    yield at_least(
        "use of codes",
        ratios[level],
        config.min_code_use_of_champion,
        f"perplexity of level {level + 1}: {used[level]:.1f}, of the champion {old[level]:.1f}",
    )


def perplexity(counts: Tensor) -> float:
    """2 to the entropy of the use of codes."""
    share = counts[counts > 0].double() / counts.sum()
    return float(2 ** -(share * share.log2()).sum())


def calibration_document(bundle: Bundle) -> dict[str, Any]:
    """Read what train_ranker measured on validation; empty without."""
    path = bundle.directory / RANKER / CALIBRATION
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def experts(subject: Subject) -> Iterator[Verdict]:
    """Refuse a ranker with an expert that gets next to no candidate."""
    if subject.challenger.ranker is None:
        return
    routing = calibration_document(subject.challenger).get("routing") or {}
    loads = []
    if routing and routing["num_candidates"] >= MIN_CANDIDATES * routing["num_experts"]:
        loads.append(min(routing["load"]) * routing["num_experts"])
    model = subject.challenger.ranker.model
    routed = model.all_item_routing()
    if routed is not None and len(routed.experts) > MIN_ITEMS * model.config.num_experts:
        use = expert_use(routed.experts[1:], model.config.num_experts)
        loads.append(float(use.load.min()) * model.config.num_experts)
    if loads:
        yield at_least(
            "load of each expert",
            min(loads),
            subject.config.min_expert_load,
            "smallest share of candidates that an expert of the ranker gets, 1 is even; a dead "
            "expert learns nothing, train with fewer experts",
        )


def calibration(subject: Subject) -> Iterator[Verdict]:
    """Refuse a ranker whose probabilities are far from what happened."""
    if subject.challenger.ranker is None:
        return
    for task, found in calibration_document(subject.challenger).get("tasks", {}).items():
        if found["observed"] * found["num_labels"] < MIN_POSITIVES:
            continue
        yield at_most(
            f"calibration of {task}",
            found["calibration_error"],
            min(subject.config.max_calibration_error, found["observed"]),
            "expected calibration error of the ranker's probabilities on validation; the bound is "
            "at most the share of positives",
        )
        ratio = found["predicted"] / found["observed"]
        away = max(ratio, 1 / ratio) if ratio > 0 else math.inf
        yield at_most(
            f"level of {task}",
            away,
            subject.config.max_calibration_ratio,
            f"{found['predicted']:.4f} predicted, {found['observed']:.4f} observed",
        )
