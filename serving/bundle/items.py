"""Content, categories, texts and popularity of a bundle's items.

    content/        content.npy [N, F], F = 0 without; words.safetensors encodes new items' words
    popularity/     see recsys/models/popularity.py
    text_search/    what finds items by a text, see recsys/models/text_search/search.py

Models read them for items that a delta appended too. Axes: N item rows, F width of content
embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.models.item_tower import ItemCatalogue
from recsys.models.names import POPULARITY
from recsys.models.popularity import Popularity
from recsys.models.text_search.search import TextSearch
from serving.bundle.arrays import check_rows, load_array, reading
from serving.bundle.catalogue import Catalogue
from serving.bundle.delta import Delta
from serving.bundle.manifest import BundleManifest

Vectors = NDArray[np.float32]
CONTENT, WORDS = Path("content") / "content.npy", Path("content") / "words.safetensors"
TEXT_SEARCH = "text_search"


def known_categories(catalogue: Catalogue, num_category_rows: int) -> Jagged:
    """Each item's categories, without those that a delta added after training."""
    values = torch.from_numpy(np.asarray(catalogue.category_values))
    offsets = torch.from_numpy(np.asarray(catalogue.category_offsets))
    known = values < num_category_rows
    before = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
    return Jagged(values[known], before[offsets])


@dataclass(frozen=True, kw_only=True)
class ItemData:
    """Facts of every item in a bundle, besides ids, texts and properties."""

    items: ItemCatalogue
    """Content embeddings and categories of every item row."""
    popularity: Popularity
    text_search: TextSearch | None = None
    """Finds items by a text; None where titles alone are searched."""


def load_item_data(directory: Path, manifest: BundleManifest, catalogue: Catalogue) -> ItemData:
    """Load content, categories, popularity and text search of all items."""
    num_rows = manifest.dimensions.num_item_rows
    content = load_array(directory / CONTENT, np.float32, 2)
    check_rows(directory / CONTENT, content.shape, (num_rows, content.shape[1]))
    known = known_categories(catalogue, manifest.dimensions.num_category_rows)
    path = directory / POPULARITY.name
    with reading(path):
        popularity = Popularity.load(path)
    check_rows(path, (popularity.num_item_rows,), (num_rows,))
    if torch.isnan(popularity.item_scores).any():
        raise ValueError(f"{path} holds NaN; fit the baselines and release the bundle again")
    search, path = None, directory / TEXT_SEARCH
    if TEXT_SEARCH in manifest.models:
        with reading(path):
            search = TextSearch.load(path)
        check_rows(path, (search.num_item_rows,), (num_rows,))
    items = ItemCatalogue(torch.from_numpy(content), known)
    return ItemData(items=items, popularity=popularity, text_search=search)


def grown_text_search(search: TextSearch, catalogue: Catalogue) -> TextSearch:
    """Take in the items that deltas appended, by their titles and categories."""
    rows = range(search.num_item_rows, catalogue.num_item_rows)
    texts = (" ".join([catalogue.title_of(row), *catalogue.categories_of(row)]) for row in rows)
    return search.grown(list(texts))


def grown_item_data(
    data: ItemData, catalogue: Catalogue, num_category_rows: int, delta: Delta
) -> ItemData:
    """Append what a delta adds: content, unpopular items, and texts of titles and categories.

    Args:
        catalogue: With the delta's items.
        num_category_rows: Of the bundle as it was released.
    """
    width = data.items.content.shape[1]
    check_rows(delta.directory, delta.content.shape, (delta.num_new_items, width))
    content = torch.cat([data.items.content, torch.from_numpy(delta.content)])
    scores, search = data.popularity.item_scores, data.text_search
    added = torch.zeros(catalogue.num_item_rows - len(scores))
    return ItemData(
        items=ItemCatalogue(content, known_categories(catalogue, num_category_rows)),
        popularity=Popularity(data.popularity.config, torch.cat([scores, added])),
        text_search=None if search is None else grown_text_search(search, catalogue),
    )
