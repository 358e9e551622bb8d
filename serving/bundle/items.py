"""Content, categories, texts and popularity of a bundle's items.

    content/        content.npy [N, F], F = 0 without
    popularity/     see recsys/models/popularity.py
    text_search/    what finds items by a text, see recsys/models/text_search/search.py

Models read them for items that a delta appended too. Axes: N item rows, F width of content
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
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
CONTENT = Path("content") / "content.npy"
TEXT_SEARCH = "text_search"


def write_content(content: Vectors | None, num_item_rows: int, directory: Path) -> None:
    """Add the content embeddings [N, F] to a bundle; None has none."""
    (directory / CONTENT).parent.mkdir()
    vectors = np.zeros((num_item_rows, 0), np.float32) if content is None else content
    np.save(directory / CONTENT, np.asarray(vectors, np.float32))


def load_items(directory: Path, manifest: BundleManifest, catalogue: Catalogue) -> ItemCatalogue:
    """Load content and categories of all items."""
    content = load_array(directory / CONTENT, np.float32, 2)
    num_rows = manifest.dimensions.num_item_rows
    check_rows(directory / CONTENT, content.shape, (num_rows, content.shape[1]))
    known = known_categories(catalogue, manifest.dimensions.num_category_rows)
    return ItemCatalogue(torch.from_numpy(content), known)


def grown_items(
    items: ItemCatalogue, catalogue: Catalogue, num_category_rows: int, deltas: Sequence[Delta]
) -> ItemCatalogue:
    """Append what deltas add.

    Args:
        catalogue: With the deltas' items.
        num_category_rows: Of the bundle as it was released.
    """
    width = items.content.shape[1]
    for delta in deltas:
        check_rows(delta.directory, delta.content.shape, (delta.num_new_items, width))
    added = [torch.from_numpy(delta.content) for delta in deltas]
    known = known_categories(catalogue, num_category_rows)
    return ItemCatalogue(torch.cat([items.content, *added]), known)


def known_categories(catalogue: Catalogue, num_category_rows: int) -> Jagged:
    """Each item's categories, without those that a delta added after training."""
    values = torch.from_numpy(np.asarray(catalogue.category_values))
    offsets = torch.from_numpy(np.asarray(catalogue.category_offsets))
    known = values < num_category_rows
    before = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
    return Jagged(values[known], before[offsets])


def load_text_search(directory: Path, manifest: BundleManifest) -> TextSearch | None:
    """Load it; None without."""
    if TEXT_SEARCH not in manifest.models:
        return None
    path = directory / TEXT_SEARCH
    with reading(path):
        search = TextSearch.load(path)
    check_rows(path, (search.num_item_rows,), (manifest.dimensions.num_item_rows,))
    return search


def grown_text_search(search: TextSearch | None, catalogue: Catalogue) -> TextSearch | None:
    """Take in the items that deltas appended, by their titles and categories."""
    if search is None:
        return None
    rows = range(search.num_item_rows, catalogue.num_item_rows)
    texts = (" ".join([catalogue.title_of(row), *catalogue.categories_of(row)]) for row in rows)
    return search.grown(list(texts))


def load_popularity(directory: Path, manifest: BundleManifest) -> Popularity:
    """Load the scores of all items."""
    path = directory / POPULARITY.name
    with reading(path):
        model = Popularity.load(path)
    check_rows(path, (model.num_item_rows,), (manifest.dimensions.num_item_rows,))
    if torch.isnan(model.item_scores).any():
        raise ValueError(f"{path} holds NaN; fit the baselines and release the bundle again")
    return model


def grown_popularity(popularity: Popularity, num_item_rows: int) -> Popularity:
    """Append unpopular items."""
    scores = popularity.item_scores
    added = torch.zeros(num_item_rows - len(scores))
    return Popularity(popularity.config, torch.cat([scores, added]))
