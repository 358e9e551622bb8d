"""IDs for items that are appended to a bundle; published IDs never change.

Axes: M new items, L levels, F width of content embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.engine.console import log
from pipelines.semantic_ids.store import FOLDER, SemanticIdStore, SemanticIdVersion
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.collisions import rows_with_content
from recsys.semantic_ids.lifecycle import append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from serving.bundle.load import Bundle
from serving.bundle.semantic_ids import ItemSemanticIds, NewIds, with_codes


class OpenStore(NamedTuple):
    """The store next to a bundle, and its current version."""

    store: SemanticIdStore
    published: SemanticIdVersion


def published_ids(
    bundle: Bundle, bundles: Path, item_ids: Sequence[str], content: NDArray[np.float32]
) -> NewIds:
    """Give IDs to new items of a bundle and publish them in the store next to it, if any.

    Args:
        content: Content embeddings of the new items, [M, F].
    """
    assert bundle.semantic_ids is not None
    opened = matching_store(bundles, bundle)
    new = give_ids(bundle.semantic_ids, item_ids, content, opened)
    if opened is not None:
        publish_ids(item_ids, new, opened)
    return new


def matching_store(bundles: Path, bundle: Bundle) -> OpenStore | None:
    """Open the store of published IDs next to the bundles, if it fits the bundle's IDs.

    It may be ahead of the bundle, which a challenger leaves, but quantiser and id rows must be the
    same; otherwise a note is printed and new IDs are not published.
    """
    own, directory = bundle.semantic_ids, bundles / FOLDER
    if own is None or not directory.is_dir():
        return None
    store = SemanticIdStore(directory)
    published = store.previous()
    if published is None:
        return None
    if published.ids.quantizer_digest == own.ids.quantizer_digest and _same_rows(store, bundle):
        return OpenStore(store, published)
    log.print(
        f"note: the semantic IDs in {directory} come from another quantiser than the bundle's; the "
        "new items have their IDs in this bundle only, the next run assigns others",
        style="yellow",
    )
    return None


def _same_rows(store: SemanticIdStore, bundle: Bundle) -> bool:
    """Return True if the store has the id rows of the bundle."""
    own, known = bundle.semantic_ids, store.item_ids
    assert own is not None
    if own.ids.num_item_rows > len(known) + 1:
        return False
    pairs = zip(own.id_rows.tolist(), bundle.catalogue.item_ids, strict=True)
    return all(known[row - 1] == item_id for row, item_id in pairs if row)


def load_bundle_quantizer(own: ItemSemanticIds) -> ResidualKMeans:
    """Load the quantiser that made a bundle's IDs."""
    quantizer = ResidualKMeans.load(own.quantizer_directory)
    if quantizer.digest != own.ids.quantizer_digest:
        raise ValueError(
            f"{own.quantizer_directory} is quantiser {quantizer.digest}, semantic IDs "
            f"{own.version} were made by {own.ids.quantizer_digest}; release the bundle again"
        )
    return quantizer


def give_ids(
    own: ItemSemanticIds,
    item_ids: Sequence[str],
    content: NDArray[np.float32],
    opened: OpenStore | None,
) -> NewIds:
    """Give IDs to items that the bundle does not have; items without content get none.

    An item with an ID in the bundle's or the store's version keeps it. Codes of items that only
    the store has stay reserved.

    Args:
        own: The bundle's IDs.
        content: Content embeddings, [M, F]; the quantiser reads the first columns.
        opened: See ``matching_store``.
    """
    quantizer = load_bundle_quantizer(own)
    vectors = torch.from_numpy(content)[:, : quantizer.dim]
    can_have = rows_with_content(vectors)
    if opened is not None:
        _, id_rows = opened.store.number(item_ids, can_have.numpy())
    else:
        id_rows = (can_have * (own.ids.num_item_rows - 1 + can_have.cumsum(0))).numpy()
    rows = torch.from_numpy(id_rows)
    codes, reserved = own.ids.by_item_row(rows).codes, None
    if opened is not None:
        ids = opened.published.ids
        codes = torch.where(codes == NO_CODE, ids.by_item_row(rows).codes, codes)
        reserved = ids.codes[ids.item_rows]
    fresh = (codes[:, 0] == NO_CODE) & can_have
    if bool(fresh.any()):
        child = append(own.ids, quantizer, vectors[fresh], item_rows=rows[fresh], reserved=reserved)
        codes[fresh] = child.codes[rows[fresh]]
    has_id = (codes[:, 0] != NO_CODE).numpy()
    return NewIds(codes, np.where(has_id, id_rows, 0))


def publish_ids(item_ids: Sequence[str], new: NewIds, opened: OpenStore) -> None:
    """Publish the IDs of new items in the store, so that the next run keeps them."""
    store, published = opened
    given = new.id_rows > 0
    rows = torch.from_numpy(new.id_rows[given])
    child = with_codes(published.ids, rows, new.codes[torch.from_numpy(given)])
    if child is published.ids:
        return
    named, _ = store.number(item_ids, given)
    store.publish(child, published.quantizer, named, published.origin)
