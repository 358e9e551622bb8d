"""The arrays of one data set, prepared once and carried to whichever machine trains on them.

    prepared.json   the recipe, what the arrays are of, and a digest over both files of arrays
    arrays.npz      every order's sequences and context, categories, user features, semantic IDs
    content.npz     [N, F] float16 content embeddings: half the bytes, and every machine that
                    trains reads the same ones

Axes: N item rows, F content width, L code levels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.data.dataset import Rows, Sequences
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.semantic_ids.codes import ItemCodes
from tests.benchmarks.recipes.recipe import Recipe, config_of

DESCRIPTION = "prepared.json"
ARRAYS = "arrays.npz"
CONTENT = "content.npz"
VERSION = "as prepared"
"""Of the semantic IDs: arrays carry one, so there is none to confuse it with."""
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set as its models read it."""

    name: str
    data_digest: str
    """Digest of the raw events."""
    recipe: Recipe
    orders: Mapping[str, Sequences]
    """Each user's events, by the order of events at one time."""
    catalogue: ItemCatalogue
    sizes: FeatureSizes
    user_features: Mapping[str, Rows] = field(default_factory=dict)
    """Categorical rows by user row, each [U]."""
    codes: ItemCodes | None = None
    content_columns: int | None = None
    """First columns of the content that ``codes`` are made from; None for all."""
    asks_last: bool = False
    """Whether a user's last event of a split is the only target (`time_to_split`)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else a reader wants to know: encoder, versions."""

    @property
    def num_item_rows(self) -> int:
        return len(self.catalogue.content)

    def order(self, name: str) -> Sequences:
        """Return the sequences of one order.

        Raises:
            ValueError: If it is not there; says which are.
        """
        if name not in self.orders:
            raise ValueError(
                f"{self.name} has no order {name!r} of tied times; it has {', '.join(self.orders)}"
            )
        return self.orders[name]

    def inputs(self, order: str) -> ModelInputs:
        """Gather what models of one order are fitted on; raises as ``order``."""
        return ModelInputs(
            sequences=self.order(order),
            catalogue=self.catalogue,
            sizes=self.sizes,
            user_features=self.user_features,
        )

    def item_codes(self) -> ItemCodes:
        """Return the semantic IDs that a generative model needs.

        Raises:
            ValueError: The arrays have none.
        """
        if self.codes is None:
            raise ValueError(
                f"the arrays of {self.name} have no semantic IDs, so there is nothing to generate; "
                "prepare them with content and semantic_ids.method, or leave the row out"
            )
        return self.codes

    def save(self, directory: Path) -> str:
        """Write the three files and return the digest of the arrays."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays = _arrays_of(self)
        content = self.catalogue.content.numpy().astype(np.float16)
        np.savez_compressed(directory / ARRAYS, **arrays)  # type: ignore[arg-type]
        # Packed, because hashed words are nearly all zeros.
        np.savez_compressed(directory / CONTENT, content=content)
        digest = arrays_digest({**arrays, "content": content})
        document = {
            "name": self.name,
            "data_digest": self.data_digest,
            "arrays_digest": digest,
            "recipe": asdict(self.recipe),
            "orders": list(self.orders),
            "sizes": asdict(self.sizes),
            "level_sizes": None if self.codes is None else list(self.codes.level_sizes),
            "content_columns": self.content_columns,
            "asks_last": self.asks_last,
            "about": dict(self.about),
        }
        # Last, so that a folder with a description is whole.
        (directory / DESCRIPTION).write_text(json.dumps(document, indent=2) + "\n")
        return digest

    @classmethod
    def load(cls, directory: Path) -> Prepared:
        """Read what `save` wrote.

        Raises:
            ValueError: There is nothing, or the arrays are not those that were described.
        """
        path = directory / DESCRIPTION
        if not path.is_file():
            raise ValueError(
                f"{directory} has no {DESCRIPTION}; make the arrays with "
                "recsys backtest --prepare FOLDER"
            )
        document = json.loads(path.read_text(encoding="utf-8"))
        if "sizes" not in document:
            raise ValueError(
                f"the arrays in {directory} are of an earlier version of the package; prepare them "
                "again with this version"
            )
        with np.load(directory / ARRAYS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        with np.load(directory / CONTENT, allow_pickle=False) as file:
            content = file["content"]
        digest = arrays_digest({**arrays, "content": content})
        if digest != document["arrays_digest"]:
            raise ValueError(
                f"the arrays in {directory} have digest {digest}, their description names "
                f"{document['arrays_digest']}; copy the whole folder again, or prepare it again"
            )
        return _prepared_of(document, arrays, content)


def arrays_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Name arrays by their names, types, shapes and bytes, 16 digits."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


def _arrays_of(prepared: Prepared) -> Arrays:
    """Lay everything but the content out flat, as narrow as it fits."""
    arrays: Arrays = {
        "categories/values": prepared.catalogue.categories.values.numpy(),
        "categories/offsets": prepared.catalogue.categories.offsets.numpy(),
    }
    for order, sequences in prepared.orders.items():
        for name in ("item_rows", "offsets", "train_end", "validation_end", "times"):
            values = getattr(sequences, name)
            if values is not None:
                arrays[f"{order}/{name}"] = np.asarray(values)
        for name, values in sequences.context.items():
            arrays[f"{order}/context/{name}"] = np.asarray(values)
    for name, rows in prepared.user_features.items():
        arrays[f"user/{name}"] = np.asarray(rows)
    if prepared.codes is not None:
        arrays["codes"] = prepared.codes.codes.numpy()
    return {name: _narrow(values) for name, values in arrays.items()}


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Halve integers that fit into 32 bits."""
    limits = np.iinfo(np.int32)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        return values
    return values.astype(np.int32)


def _prepared_of(document: Mapping[str, Any], arrays: Arrays, content: NDArray[Any]) -> Prepared:
    """Put together what the files hold."""
    wide = {name: values.astype(np.int64) for name, values in arrays.items()}
    orders = {
        order: Sequences(
            item_rows=wide[f"{order}/item_rows"],
            offsets=wide[f"{order}/offsets"],
            train_end=wide[f"{order}/train_end"],
            validation_end=wide[f"{order}/validation_end"],
            times=wide.get(f"{order}/times"),
            context={
                name.removeprefix(f"{order}/context/"): values
                for name, values in wide.items()
                if name.startswith(f"{order}/context/")
            },
        )
        for order in document["orders"]
    }
    categories = Jagged(
        torch.from_numpy(wide["categories/values"]), torch.from_numpy(wide["categories/offsets"])
    )
    codes = None
    if document["level_sizes"] is not None:
        codes = ItemCodes(
            codes=torch.from_numpy(wide["codes"]).int(),
            level_sizes=tuple(document["level_sizes"]),
            version=VERSION,
        )
    return Prepared(
        name=document["name"],
        data_digest=document["data_digest"],
        recipe=config_of(Recipe, document["recipe"], "recipe."),
        orders=orders,
        catalogue=ItemCatalogue(torch.from_numpy(content.astype(np.float32)), categories),
        sizes=FeatureSizes(**document["sizes"]),
        user_features={name[5:]: rows for name, rows in wide.items() if name.startswith("user/")},
        codes=codes,
        content_columns=document["content_columns"],
        asks_last=document.get("asks_last", False),
        about=document["about"],
    )
