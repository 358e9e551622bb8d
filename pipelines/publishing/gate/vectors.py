"""Numbers of a bundle: finite, of usual size, and the index built of the vectors beside it.

Axes: N item rows, D width, R rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from serving.bundle.manifest import Verdict
from serving.bundle.retriever import ITEM_VECTORS

MIN_ROWS = 10
"""Rows without which a table has no usual size."""
MAX_QUERIES = 200
NEAREST = 10
MIN_CHANGED = 10
"""Items without which changed texts say nothing of content embeddings."""
SAME = 0.99
"""Cosine above which two vectors count as the same."""


def arrays_of(directory: Path, files: list[str]) -> Iterator[tuple[str, Tensor]]:
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
    bundle, bound = subject.challenger, subject.config.max_norm_ratio
    broken: list[str] = []
    longest, where = 0.0, "no table"
    for name, array in arrays_of(bundle.directory, sorted(bundle.manifest.files)):
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
    yield at_most(
        "length of vectors",
        longest,
        bound,
        f"longest row of {where} against the median row; far above it, training exploded there",
    )


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
    yield at_least(
        "index of these vectors",
        recall,
        subject.config.min_index_agreement,
        f"share of the {k} nearest items by the bundle's own item vectors that its index lists; "
        "an index of earlier vectors does not",
    )
    with torch.inference_mode():
        encoded = bundle.retriever.model.all_item_vectors()[chosen]
    cosine = torch.cosine_similarity(vectors[chosen], encoded.float(), dim=1)
    yield at_least(
        "vectors of this model",
        float((cosine >= SAME).double().mean()),
        subject.config.min_index_agreement,
        "share of item vectors that the bundle's two-tower gives for these items",
    )


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
    if same_text.sum() >= MIN_CHANGED:
        yield at_least(
            "content vectors of these items",
            float((cosine[same_text] >= SAME).mean()),
            1 - subject.config.max_changed_texts,
            "share of the items with an unchanged text whose content vector is unchanged; else "
            "vectors belong to other items, or the encoder changed without its name",
        )
    # Encoders may well ignore case and punctuation.
    words = [[re.findall(r"\w+", texts[row].lower()) for row in rows] for texts, rows in both]
    changed = np.array([a != b for a, b in zip(*words, strict=True)], bool)
    if changed.sum() >= MIN_CHANGED:
        equal = (vectors[0] == vectors[1]).all(1).numpy()
        yield at_most(
            "content vectors of changed texts",
            float(equal[changed].mean()),
            subject.config.max_changed_texts,
            "share of the items with a changed text whose content vector is the old one; the "
            "embeddings are stale, run embed_items with --force embed_items",
        )
