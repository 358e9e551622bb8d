"""Checks of a bundle's arrays and models: vectors, index, semantic IDs, experts, calibration.

Axes: N item rows, D width, R rows of a table, L levels, E experts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from recsys.layers.moe.routing import expert_use
from recsys.semantic_ids.quality import code_counts, invalid_share
from serving.bundle.item_index import ITEM_VECTORS
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict
from serving.bundle.ranker import RANKER
from serving.bundle.semantic_ids import ItemSemanticIds

MIN_ROWS = 10
"""Rows without which a table has no usual size."""
MAX_QUERIES = 200
NEAREST = 10
MIN_CHANGED = 10
"""Items without which changed texts say nothing of content embeddings."""
SAME = 0.99
"""Cosine above which two vectors count as the same."""


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


def index_agrees(subject: Subject) -> Iterator[Verdict]:
    """Search the index by the bundle's own vectors, which were encoded by its own model."""
    bundle = subject.challenger
    if bundle.retriever is None:
        return
    stored = np.load(bundle.directory / ITEM_VECTORS, allow_pickle=False)
    vectors = torch.from_numpy(np.asarray(stored, np.float32))  # [N, D]
    drawn = np.random.default_rng(subject.seed).permutation(len(vectors) - 1)[:MAX_QUERIES]
    chosen = torch.from_numpy(np.sort(drawn) + 1)
    k = min(NEAREST, len(vectors) - 1)
    scores = vectors[chosen] @ vectors.T
    scores[:, 0] = -torch.inf
    found = bundle.retriever.index.search(vectors[chosen], k).item_rows
    listed = scores.gather(1, found.clamp_min(0)).masked_fill(found < 1, -torch.inf)
    # By score, so that equal items count as found.
    least = scores.topk(k, dim=1).values[:, -1:]
    recall = float((listed >= least - 1e-3 * least.abs()).double().mean())
    least_share = subject.config.min_index_agreement
    why = (
        f"share of the {k} nearest items by the bundle's own item vectors that its index lists; "
        "an index of earlier vectors does not"
    )
    yield at_least("index of these vectors", recall, least_share, why)
    with torch.inference_mode():
        encoded = bundle.retriever.model.all_item_vectors()[chosen]
    cosine = torch.cosine_similarity(vectors[chosen], encoded.float(), dim=1)
    equal = float((cosine >= SAME).double().mean())
    why = "share of item vectors that the bundle's two-tower gives for these items"
    yield at_least("vectors of this model", equal, least_share, why)


def common_rows(subject: Subject) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the items that both bundles have: the champion's, the challenger's."""
    assert subject.champion is not None
    before, after = subject.champion.catalogue, subject.challenger.catalogue
    pairs = [
        (row, other)
        for row in range(1, before.num_item_rows)
        if (other := after.row_of(before.item_ids[row])) is not None
    ]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def content_is_current(subject: Subject) -> Iterator[Verdict]:
    """Compare content embeddings with the champion's: equal texts, equal vectors."""
    champion, challenger = subject.champion, subject.challenger
    if champion is None or champion.manifest.content != challenger.manifest.content:
        return
    width = challenger.items.content.shape[1]
    if not width or width != champion.items.content.shape[1]:
        return
    old, new = common_rows(subject)
    before, after = champion.catalogue.display_texts, challenger.catalogue.display_texts
    both = ((before, old), (after, new))
    same_text = np.array([before[a] == after[b] for a, b in zip(old, new, strict=True)], bool)
    vectors = champion.items.content[old].float(), challenger.items.content[new].float()
    cosine = torch.cosine_similarity(*vectors, dim=1).numpy()
    most = subject.config.max_changed_texts
    if same_text.sum() >= MIN_CHANGED:
        share = float((cosine[same_text] >= SAME).mean())
        why = (
            "share of the items with an unchanged text whose content vector is unchanged; else "
            "vectors belong to other items, or the encoder changed without its name"
        )
        yield at_least("content vectors of these items", share, 1 - most, why)
    # Encoders may well ignore case and punctuation.
    words = [[re.findall(r"\w+", texts[row].lower()) for row in rows] for texts, rows in both]
    changed = np.array([a != b for a, b in zip(*words, strict=True)], bool)
    if changed.sum() >= MIN_CHANGED:
        share = float((vectors[0] == vectors[1]).all(1).numpy()[changed].mean())
        why = (
            "share of the items with a changed text whose content vector is the old one; the "
            "embeddings are stale, run embed_items with --force embed_items"
        )
        yield at_most("content vectors of changed texts", share, most, why)


MIN_ITEMS = 20
"""Items without which codes cannot be spread."""
MIN_CANDIDATES = 1_000
"""Routed candidates an expert without which the load is chance."""
MIN_POSITIVES = 50
CALIBRATION = "calibration.json"


def semantic_ids(subject: Subject) -> Iterator[Verdict]:
    """Refuse IDs that are none, that two items share, or whose codes collapsed."""
    found = subject.challenger.semantic_ids
    if found is None:
        return
    codes = found.codes[found.codes[:, 0] >= 0]
    outside = ((codes < 0) | (codes >= torch.tensor(found.ids.level_sizes))).any(1)
    repeated = len(codes) - len(torch.unique(codes, dim=0))
    invalid = (int(outside.sum()) + repeated) / max(1, len(codes))
    invalid = max(invalid, _generated_invalid(subject.challenger, found.codes))
    yield at_most("invalid semantic IDs", invalid, 0, "share of IDs that name no item, or two")
    if len(codes) >= MIN_ITEMS:
        yield from _code_use(subject, codes, found)


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
        bound = min(subject.config.max_calibration_error, found["observed"])
        why = (
            "expected calibration error of the ranker's probabilities on validation; the bound is "
            "at most the share of positives"
        )
        yield at_most(f"calibration of {task}", found["calibration_error"], bound, why)
        ratio = found["predicted"] / found["observed"]
        away = max(ratio, 1 / ratio) if ratio > 0 else math.inf
        why = f"{found['predicted']:.4f} predicted, {found['observed']:.4f} observed"
        yield at_most(f"level of {task}", away, subject.config.max_calibration_ratio, why)
