"""Saved models in a bundle: copied into it, and checked against the rest of it when loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from recsys.data.finite import all_finite
from serving.bundle.arrays import reading
from serving.bundle.manifest import BundleManifest


def copy_model(source: Path, target: Path) -> None:
    """Copy the regular files of a model's directory."""
    if not source.is_dir():
        raise ValueError(f"{source} is not the directory of a saved model; run its stage first")
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def check_rows(path: Path, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Hold the shape of a part against the rest of the bundle.

    Raises:
        ValueError: Names the part and both shapes.
    """
    if found != expected:
        raise ValueError(
            f"{path} is {' x '.join(map(str, found))}, the rest of the bundle needs "
            f"{' x '.join(map(str, expected))}; its parts come from different runs, release the "
            "bundle again"
        )


class EncodesItems(Protocol):
    """A model with item vectors that it computes once and keeps."""

    def all_item_inputs(self) -> Tensor: ...


def encode_items(model: EncodesItems) -> None:
    """Compute a model's item vectors, so that requests in many threads only read them.

    Raises:
        ValueError: One is not finite.
    """
    if not all_finite(model.all_item_inputs()):
        raise ValueError("its item vectors are not finite; train and release it again")


def check_inputs(
    path: Path, manifest: BundleManifest, content_dim: int, more: Mapping[str, object]
) -> None:
    """Hold what a model was built to read, by its ``config.json``, against what the bundle has.

    Raises:
        ValueError: Names the input and both values.
    """
    with reading(path):
        inputs = json.loads(path.read_text())["inputs"]
        expected: dict[str, object] = {
            "num_item_rows": manifest.dimensions.num_item_rows,
            "content_dim": content_dim,
            **more,
        }
        if inputs["num_categories"]:
            expected["num_categories"] = manifest.dimensions.num_category_rows
        for name, value in expected.items():
            if inputs[name] != value:
                raise ValueError(
                    f"the model was trained with {name} {inputs[name]}, the bundle has {value}; "
                    "its parts come from different runs, release the bundle again"
                )
