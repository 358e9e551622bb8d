"""Defects that are planted into the parts of a bundle, for tests and the benchmark of the gate.

Each changes copies in a scratch folder and leaves the originals alone.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from recsys.semantic_ids.codes import SemanticIds
from serving.bundle.catalogue import Catalogue
from serving.bundle.semantic_ids import ID_ROWS, QUANTIZER
from serving.bundle.users import Users
from serving.bundle.write import BundleParts
from tests.serving.synthetic_bundle import with_model, without

Plant = Callable[[BundleParts, Path], BundleParts]


def copied(source: Path, scratch: Path) -> Path:
    target = scratch / f"planted-{source.name}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def with_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: one.contiguous() for name, one in tensors.items()}, path)


def widest(tensors: dict[str, torch.Tensor]) -> str:
    """Name the largest table, such as one of embeddings."""
    tables = {name: one.numel() for name, one in tensors.items() if one.ndim == 2}
    return max(tables, key=tables.__getitem__)


def exploding_rows(parts: BundleParts, scratch: Path) -> BundleParts:
    model = copied(parts.models["two_tower"], scratch)

    def explode(tensors: dict[str, torch.Tensor]) -> None:
        name = widest(tensors)
        tensors[name][1] *= 1e4

    with_tensors(model / "two_tower.safetensors", explode)
    return with_model(parts, "two_tower", model)


def infinite_weights(parts: BundleParts, scratch: Path) -> BundleParts:
    """The ranker diverged: a weight of its heads is infinite, which only some candidates meet."""
    model = copied(parts.models["ranker"], scratch)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.startswith("heads") and "weight" in name)
        tensors[name].view(-1)[0] = torch.inf

    with_tensors(model / "ranker.safetensors", spoil)
    return with_model(parts, "ranker", model)


def with_codes(parts: BundleParts, scratch: Path, codes: torch.Tensor) -> BundleParts:
    """Give every ID other codes; the model that speaks the old ones is left out."""
    assert parts.semantic_ids is not None
    source = parts.semantic_ids
    ids = SemanticIds.load(source)
    target = scratch / "planted-ids"
    made = SemanticIds.of_items(
        codes,
        level_sizes=ids.level_sizes,
        quantizer_digest=ids.quantizer_digest,
        item_rows=torch.from_numpy(np.load(source / ID_ROWS)[1:]),
    )
    made.save(target)
    shutil.copytree(source / QUANTIZER, target / QUANTIZER)
    np.save(target / ID_ROWS, np.load(source / ID_ROWS))
    models = without(parts, "generative", "blend_full").models
    return replace(parts, semantic_ids=target, models=models)


def collapsed_codebook(parts: BundleParts, scratch: Path) -> BundleParts:
    """Nearly all items have one first code; what tells them apart are the later levels."""
    assert parts.semantic_ids is not None
    sizes = SemanticIds.load(parts.semantic_ids).level_sizes
    number = torch.arange(parts.catalogue.num_item_rows - 1)
    codes = torch.zeros((len(number), len(sizes)), dtype=torch.int32)
    for level in range(len(sizes) - 1, 0, -1):
        codes[:, level] = number % sizes[level]
        number = number // sizes[level]
    codes[:, 0] = number
    return with_codes(parts, scratch, codes)


def dead_expert(parts: BundleParts, scratch: Path) -> BundleParts:
    """Validation sent nothing to the last expert, as `train_ranker` writes down."""
    return with_load(parts, scratch, [0.34, 0.33, 0.33, 0.0])


def with_load(parts: BundleParts, scratch: Path, load: list[float]) -> BundleParts:
    """Write the load of the experts that train_ranker measured."""
    model = copied(parts.models["ranker"], scratch)
    routing = {"num_experts": len(load), "num_candidates": 100_000, "load": load}
    (model / "calibration.json").write_text(json.dumps({"routing": routing}))
    return with_model(parts, "ranker", model)


def texts_of_other_items(parts: BundleParts, scratch: Path) -> BundleParts:
    """The column of titles is shifted by one row."""
    old = parts.catalogue
    texts = [old.display_texts[row] for row in range(1, old.num_item_rows)]
    catalogue = Catalogue.from_lists(
        item_ids=[old.item_ids[row] for row in range(1, old.num_item_rows)],
        display_texts=[*texts[1:], texts[0]],
        category_names=[old.category_names[row] for row in range(1, old.num_category_rows)],
        category_values=np.asarray(old.category_values),
        category_offsets=np.asarray(old.category_offsets),
    )
    return replace(parts, catalogue=catalogue)


def with_users(parts: BundleParts, **changes: object) -> BundleParts:
    old = parts.users
    fields = {
        "user_ids": [old.user_ids[row] for row in range(1, old.num_user_rows)],
        "features": old.features,
        "item_rows": np.asarray(old.item_rows),
        "offsets": np.asarray(old.offsets),
        "times": None if old.times is None else np.asarray(old.times),
    }
    return replace(parts, users=Users.from_lists(**{**fields, **changes}))


def time_zone_error(parts: BundleParts, scratch: Path) -> BundleParts:
    """All events were read eight hours late."""
    assert parts.users.times is not None
    return with_users(parts, times=np.asarray(parts.users.times) + 8 * 3_600)


def lists_for_nobody(parts: BundleParts, scratch: Path) -> BundleParts:
    """All personal models are missing: everybody sees the popular items."""
    return replace(parts, two_tower=None, models={"popularity": parts.models["popularity"]})


PLANTED: dict[str, tuple[Plant, str]] = {
    "exploding rows": (exploding_rows, "length of vectors"),
    "infinite weights": (infinite_weights, "finite numbers"),
    "collapsed codebook": (collapsed_codebook, "use of the first codes"),
    "dead expert": (dead_expert, "load of each expert"),
    "titles shifted": (texts_of_other_items, "texts of the catalogue"),
    "time-zone error": (time_zone_error, "times of known events"),
    "popular lists for all": (lists_for_nobody, "catalogue coverage"),
}
"""Name of a defect -> what plants it, and the verdict that names it."""
