"""What a report of semantic IDs is made from, and the numbers that it shows.

Item rows may differ from run to run; a version's codes lie over id rows, which never move. The
report speaks of the catalogue of one run, so everything else comes by item row.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from pipelines.inputs.tensors import tie_orders
from recsys.data.dataset import Sequences
from recsys.semantic_ids.codes import Quantizer, SemanticIds


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The items of a run by item row; each sequence has N entries, the first of the padding."""

    titles: Sequence[str]
    categories: Sequence[Sequence[str]]
    """Names of each item's categories; all empty where the catalogue has none."""
    popularity: NDArray[np.int64]
    """Events of each item, [N]; zeros where there are none."""


@dataclass(frozen=True, kw_only=True)
class ReportedIds:
    """One version and what is known about it."""

    ids: SemanticIds
    """Over id rows."""
    quantizer: Quantizer
    id_rows: NDArray[np.int64]
    """Id row of each item row, [N]; 0 where the item has no ID."""
    vectors: Tensor
    """Content by item row, [N, D]; a zero row has no content."""
    catalogue: Catalogue
    title: str
    """Name of the data, for the heading."""
    method: str
    """Such as "rq_kmeans"."""
    how: str
    """"trained", "appended", "aligned" or "kept"; anything else is shown as it is."""
    encoder: str = ""
    """What made the content vectors."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The [semantic_ids] table that the version was made with."""
    num_retired: int = 0
    """IDs of earlier versions that nobody has any more and nobody may inherit."""
    previous: SemanticIds | None = None
    """The version to compare with, over the same id rows."""


def read_catalogue(features: Path) -> Catalogue:
    """Read titles, categories and counts of events from a build_features artefact."""
    path = features / "items.parquet"
    has_categories = "categories" in pl.read_parquet_schema(path)
    columns = ["item_row", "display_text", *(["categories"] if has_categories else [])]
    items = pl.read_parquet(path, columns=columns).sort("item_row")
    lists = items["categories"].fill_null([]).to_list() if has_categories else [[]] * items.height
    sequences = Sequences.load(features / "sequences" / tie_orders(features)[0])
    counts = np.bincount(np.asarray(sequences.item_rows), minlength=items.height + 1)
    return Catalogue(
        titles=["", *items["display_text"]],
        categories=[[], *lists],
        popularity=counts.astype(np.int64),
    )
