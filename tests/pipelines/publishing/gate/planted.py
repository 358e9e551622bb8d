"""Defects that are planted into the parts of a bundle, for tests and the benchmark of the gate.

Each changes copies in a scratch folder and leaves the originals alone.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from serving.bundle.catalogue import Catalogue
from serving.bundle.users import Users
from serving.bundle.write import BundleParts

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


def infinite_weights(parts: BundleParts, scratch: Path) -> BundleParts:
    """The ranker diverged: a weight of its heads is infinite, which only some candidates meet."""
    assert parts.ranker is not None
    model = copied(parts.ranker, scratch)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.startswith("heads") and "weight" in name)
        tensors[name].view(-1)[0] = torch.inf

    with_tensors(model / "ranker.safetensors", spoil)
    return replace(parts, ranker=model)


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
    return replace(
        parts,
        two_tower=None,
        item_weights={},
        content_similarity=None,
        sequence=None,
        ensemble=None,
        generative=None,
        blends={},
        ranker=None,
    )


PLANTED: dict[str, tuple[Plant, str]] = {
    "infinite weights": (infinite_weights, "finite numbers"),
    "titles shifted": (texts_of_other_items, "texts of the catalogue"),
    "time-zone error": (time_zone_error, "times of known events"),
    "popular lists for all": (lists_for_nobody, "catalogue coverage"),
}
"""Name of a defect -> what plants it, and the verdict that names it."""
