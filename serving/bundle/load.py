"""Load a bundle: everything is verified before it is used, and deltas are applied."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.durable import Held
from recsys.layers.embedding.tables import filled_later
from serving.bundle.arrays import check_rows
from serving.bundle.catalogue import Catalogue
from serving.bundle.delta import Delta, read_semantic_ids
from serving.bundle.history_models import HistoryModels, grown_history_models, load_history_models
from serving.bundle.item_index import (
    ItemIndexes,
    Retriever,
    grown_item_indexes,
    grown_retriever,
    load_item_indexes,
    load_retriever,
)
from serving.bundle.items import ItemData, grown_item_data, load_item_data
from serving.bundle.manifest import (
    BundleManifest,
    Link,
    read_chain,
    verify_files,
    vocabulary_digests,
)
from serving.bundle.properties import NO_PROPERTIES, Properties, load_properties
from serving.bundle.published import permitted
from serving.bundle.ranker import LoadedRanker, load_ranker
from serving.bundle.semantic_ids import ItemSemanticIds
from serving.bundle.users import Users, check_context_features

Mask = NDArray[np.bool_]
MAX_BYTES = 64 << 20
"""Limit of all masks of one bundle in one process: 67 of a million rows."""
MAX_MASKS = 4_096


class KeptMasks:
    """The masks used last, each made once; safe to share between threads."""

    def __init__(self, num_rows: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_masks = max(1, min(MAX_MASKS, max_bytes // num_rows))
        self._kept: OrderedDict[Hashable, Mask] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Mask]) -> Mask:
        """Return a mask that nobody may write into, [N]; ``make`` runs if it is new."""
        with self._lock:
            if (mask := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return mask
        mask = make()
        mask.flags.writeable = False
        with self._lock:
            self._kept[key] = mask
            if len(self._kept) > self._max_masks:
                self._kept.popitem(last=False)
        return mask


@dataclass(frozen=True, kw_only=True)
class Bundle(HistoryModels, ItemData):
    """A loaded bundle, its deltas applied; nothing in it but properties changes afterwards."""

    manifest: BundleManifest
    digest: str
    """sha256 of the manifest (of the last delta, where there is one)."""
    catalogue: Catalogue
    users: Users
    retriever: Retriever | None
    semantic_ids: ItemSemanticIds | None
    indexes: ItemIndexes
    """Indexes of sequence models and content, by part; large catalogues alone have them."""
    ranker: LoadedRanker | None
    properties: Properties = NO_PROPERTIES
    """Properties of items that filters and rules read."""
    context_features: Mapping[str, int]
    event_types: Mapping[str, int]
    """Rows of the types of events that models know."""
    exclude_history: bool
    """True if lists leave out the history where the deployment does not say otherwise."""
    num_released_rows: int
    """Item rows that models were fitted with; later ones were appended by deltas."""
    directory: Path
    """Folder of the bundle as it was released."""
    released: Bundle | None = None
    """The bundle before its deltas; None without deltas."""
    held: Held | None = field(default=None, repr=False, compare=False)
    """Keeps the folders that were read from being removed."""

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def num_item_rows(self) -> int:
        return self.catalogue.num_item_rows

    @cached_property
    def item_counts(self) -> Tensor:
        """Events of each item that models were fitted on, [N] float64; 0 for appended ones."""
        counts = np.bincount(self.users.counted.rows, minlength=self.num_item_rows)
        return torch.from_numpy(counts.astype(np.float64))

    @cached_property
    def masks(self) -> KeptMasks:
        """Masks of filters that requests repeat."""
        return KeptMasks(self.num_item_rows)


@permitted()
def load_bundle(path: Path, loaded: Bundle | None = None) -> Bundle:
    """Verify ``bundle-<version>`` or ``current``, with all that a delta descends from, and load it.

    Every file's digest and every agreement of dimensions is checked before anything is used; files
    that this process has hashed are hashed again only if they changed.

    Args:
        loaded: Where the path is a delta of the same release, arrays and models are shared with
            this one, which stays as it is; only new rows are read.
    """
    target = path.resolve()
    # A folder that may not be listed would look empty, its files missing.
    for _ in os.walk(target, onerror=_raise):
        pass
    chain = read_chain(target)
    held = Held(link.directory for link in chain)
    for link in chain:
        verify_files(link.directory, link.manifest)
        if vocabulary_digests(link.manifest.files) != link.manifest.vocabularies:
            raise ValueError(
                f"{link.directory} has id tables other than its vocabulary digests say; "
                "release the bundle again"
            )
    released = None if loaded is None else loaded.released or loaded
    found = (released.directory, released.digest) if released else None
    if released is None or found != (chain[0].directory, chain[0].digest):
        with filled_later():
            released = replace(_load_released(chain[0]), held=held)
    return replace(_grown(released, chain), held=held) if len(chain) > 1 else released


def _raise(error: OSError) -> NoReturn:
    raise error


def _load_released(link: Link) -> Bundle:
    """Load a bundle as it was released, its files verified."""
    directory, manifest = link.directory, link.manifest
    check_context_features(directory, manifest.context_features)
    catalogue = Catalogue.load(directory)
    catalogue.check(directory)
    expected = manifest.dimensions
    num_item_rows = expected.num_item_rows
    found = (catalogue.num_item_rows, catalogue.num_category_rows)
    check_rows(directory / "catalogue", found, (num_item_rows, expected.num_category_rows))
    users = Users.load(directory, list(manifest.user_features))
    users.check(directory, num_item_rows, manifest.user_features)
    check_rows(directory / "users", (users.num_user_rows,), (expected.num_user_rows,))

    properties = load_properties(directory, manifest)
    properties.check(directory, num_item_rows)
    data = load_item_data(directory, manifest, catalogue)
    semantic_ids = read_semantic_ids([link])
    demand = cache(partial(users.measure_demand, num_item_rows))
    models = load_history_models(directory, manifest, data.items, semantic_ids, demand)
    if users.times is not None:
        now = int(np.max(users.times, initial=0))
        blends = {profile: one.as_of(now) for profile, one in models.blends.items()}
        models = replace(models, blends=blends)
    return Bundle(
        **vars(data),
        **vars(models),
        manifest=manifest,
        digest=link.digest,
        directory=directory,
        catalogue=catalogue,
        users=users,
        retriever=load_retriever(directory, manifest, data.items),
        semantic_ids=semantic_ids,
        indexes=load_item_indexes(directory, manifest, models.vectors()),
        ranker=load_ranker(directory, manifest, data.items, models.blends, demand),
        properties=properties,
        context_features=manifest.context_features,
        event_types={name: row for row, name in enumerate(manifest.event_types, start=1)},
        exclude_history=manifest.exclude_history,
        num_released_rows=num_item_rows,
    )


def _grown(released: Bundle, chain: Sequence[Link]) -> Bundle:
    """Apply the delta of a chain to its bundle; what does not grow is shared."""
    delta = Delta.load(chain[1])
    catalogue = delta.extend(released.catalogue)
    properties = delta.extend_properties(released.properties)
    data = grown_item_data(released, catalogue, released.catalogue.num_category_rows, delta)
    semantic_ids = read_semantic_ids(chain, released.semantic_ids)
    models = grown_history_models(released, data.items, semantic_ids)
    retriever, ranker = released.retriever, released.ranker
    return replace(
        released,
        **vars(data),
        **vars(models),
        released=released,
        manifest=chain[-1].manifest,
        digest=chain[-1].digest,
        catalogue=catalogue,
        retriever=None if retriever is None else grown_retriever(retriever, data.items, delta),
        semantic_ids=semantic_ids,
        indexes=grown_item_indexes(released.indexes, models.vectors()),
        ranker=None if ranker is None else ranker.grown(data.items),
        properties=properties,
    )
