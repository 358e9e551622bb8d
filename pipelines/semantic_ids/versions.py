"""The next version of a catalogue's semantic IDs: as published, appended to, or fitted again.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.config.content import BEHAVIOUR, SemanticIdsConfig
from pipelines.engine.artifacts import plain
from pipelines.semantic_ids.store import SemanticIdStore, SemanticIdVersion
from recsys.semantic_ids.behaviour import BehaviourIds, behaviour_ids
from recsys.semantic_ids.codes import NO_CODE, SemanticIds, digest_of
from recsys.semantic_ids.collisions import (
    NoFreeIdError,
    assign_semantic_ids,
    item_rows_with_content,
    rows_with_content,
)
from recsys.semantic_ids.lifecycle import KeptShares, align, append
from recsys.semantic_ids.rq_kmeans import KMeansConfig, ResidualKMeans, ResidualKMeansConfig

How = Literal["trained", "appended", "aligned", "kept"]
FULL = 0.8
"""Share of all possible IDs in use from which level sizes that follow the catalogue are chosen
again: new items would find no free ID near their content."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content and behaviour that semantic IDs are made from."""

    item_ids: Sequence[str]
    """Ids of item rows 1 .. N - 1."""
    vectors: Tensor
    """[N, D]; a zero row has no content."""
    encoder: str
    """Identity of the vectors."""
    behaviour: Tensor | None = None
    """Item vectors of a sequence model, [N, D'], where IDs are made from them."""

    def is_known(self) -> Tensor:
        """Return which item rows have content, [N] bool."""
        return item_rows_with_content(self.vectors)

    def origin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Describe what a quantiser is fitted on."""
        made = self._identity(settings)
        if self.behaviour is not None:
            digest = digest_of({}, {"item_vectors": self.behaviour})
            made["behaviour"] = {"dim": self.behaviour.shape[1], "item_vectors": digest}
        return made

    def extends(self, origin: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Return True if published IDs of this origin are appended to.

        Behaviour does not count: its vectors change with every training.
        """
        identity = self._identity(settings)
        known = {name: origin.get(name) for name in identity}
        # Settings that were removed since then count for nothing.
        published = known["settings"] or {}
        known["settings"] = {name: published[name] for name in settings if name in published}
        return known == identity

    def _identity(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        dim = self.vectors.shape[1]
        return {"encoder": self.encoder, "dim": dim, "settings": dict(settings)}


@dataclass(frozen=True, kw_only=True)
class NextVersion(SemanticIdVersion):
    """A version that can be published."""

    item_ids: Sequence[str]
    """By id row, from 1 on."""
    id_rows: NDArray[np.int64]
    """Id row of each item row, [N]; 0 without an ID."""
    how: How
    kept: KeptShares | None = None
    """Compared with the previous version; None without one, or where the level sizes differ."""
    num_new: int = 0

    @property
    def num_with_id(self) -> int:
        return int((self.id_rows > 0).sum())


def next_version(
    content: Content,
    store: SemanticIdStore,
    config: SemanticIdsConfig,
    *,
    seed: int = 0,
    refit: bool = False,
) -> NextVersion | None:
    """Append to the published IDs where encoder and settings are the same; otherwise fit again.

    Full levels are fitted again too.

    Args:
        refit: Fit again though published IDs could be appended to.

    Returns:
        None where no item has content.
    """
    if not bool(content.is_known().any()):
        return None
    previous = store.previous()
    if not refit and previous is not None and content.extends(previous.origin, plain(config)):
        try:
            appended = append_new(content, store, previous)
        except NoFreeIdError:
            if config.codes_per_level is not None:
                raise
        else:
            num_given = len(appended.ids.item_rows)
            is_full = num_given > FULL * prod(previous.ids.level_sizes)
            if config.codes_per_level is not None or appended.how == "kept" or not is_full:
                return appended
    return refit_ids(content, store, config, seed=seed)


def _numbered(
    content: Content, store: SemanticIdStore, wanted: Tensor
) -> tuple[list[str], NDArray[np.int64]]:
    """Give id rows to wanted item rows that never had one; return the items by id row too."""
    item_ids, id_rows = store.number(content.item_ids, wanted[1:].numpy())
    return item_ids, np.concatenate([[0], id_rows])


def _have_ids(ids: SemanticIds, id_rows: Tensor) -> Tensor:
    """Return which id rows have an ID, [N] bool."""
    return ids.by_item_row(id_rows).codes[:, 0] != NO_CODE


def append_new(
    content: Content, store: SemanticIdStore, previous: SemanticIdVersion
) -> NextVersion:
    """Give IDs to the items that have none; published IDs stay."""
    item_ids, numbers = _numbered(content, store, content.is_known())
    rows = torch.from_numpy(numbers)
    missing = content.is_known() & ~_have_ids(previous.ids, rows)
    ids = previous.ids
    if bool(missing.any()):
        vectors = content.vectors[missing]
        ids = append(previous.ids, previous.quantizer, vectors, item_rows=rows[missing])
    return NextVersion(
        ids=ids,
        quantizer=previous.quantizer,
        item_ids=item_ids,
        id_rows=np.where(_have_ids(ids, rows).numpy(), numbers, 0),
        origin=previous.origin,
        how="appended" if bool(missing.any()) else "kept",
        num_new=int(missing.sum()),
    )


def refit_ids(
    content: Content, store: SemanticIdStore, config: SemanticIdsConfig, *, seed: int = 0
) -> NextVersion:
    """Fit a quantiser on the catalogue and align its codes to the published ones.

    The fit starts from the published quantiser where encoder, method and levels are the same.
    """
    wanted = content.is_known()
    item_ids, numbers = _numbered(content, store, wanted)
    rows = torch.from_numpy(numbers)
    previous, origin = store.previous(), content.origin(plain(config))
    table = _by_id_row(content.vectors, wanted, rows, len(item_ids) + 1)
    if config.source == BEHAVIOUR:
        behaviour = _by_id_row(require_behaviour(content), wanted, rows, len(item_ids) + 1)
        ids_before = None if previous is None else previous.ids
        ids, quantizer = fit_behaviour(behaviour, table, config, seed=seed, start=ids_before)
    else:
        sizes, start = config.level_sizes(int(wanted.sum())), None
        if previous is not None and previous.quantizer.level_sizes == sizes:
            same = all(previous.origin.get(name) == origin[name] for name in ("encoder", "dim"))
            start = previous.quantizer if same else None
        residual = _residual_config(config, sizes, seed)
        vectors = content.vectors[wanted].to(_device())
        quantizer = ResidualKMeans.fit(vectors, residual, start=start).to("cpu")
        ids = assign_semantic_ids(quantizer, table)
    made = NextVersion(
        ids=ids,
        quantizer=quantizer,
        item_ids=item_ids,
        id_rows=np.where(_have_ids(ids, rows).numpy(), numbers, 0),
        origin=origin,
        how="trained",
        num_new=len(item_ids) - len(store.item_ids),
    )
    return made if previous is None else _aligned(made, previous)


def require_behaviour(content: Content) -> Tensor:
    """Return the vectors that IDs of behaviour are made from."""
    if content.behaviour is None:
        raise ValueError(
            f'semantic_ids.source = "{BEHAVIOUR}" makes IDs from a sequence model, and there is '
            'none; set sequence_training.enabled = true, or semantic_ids.source = "content"'
        )
    return content.behaviour


def fit_behaviour(
    behaviour: Tensor,
    content: Tensor,
    config: SemanticIdsConfig,
    *,
    seed: int,
    start: SemanticIds | None = None,
) -> BehaviourIds:
    """Give IDs by behaviour [N, D'] to rows with content [N, D], as the configuration says."""
    num_items = int(rows_with_content(content[1:]).sum())
    residual = _residual_config(config, config.level_sizes(num_items), seed)
    vectors, placed = behaviour.to(_device()), content.to(_device())
    made = behaviour_ids(vectors, placed, residual, start)
    return made._replace(quantizer=made.quantizer.to("cpu"))


def _by_id_row(values: Tensor, wanted: Tensor, rows: Tensor, size: int) -> Tensor:
    """Scatter the values of wanted item rows by id row, [size, D]; zeros elsewhere."""
    table = torch.zeros(size, values.shape[1])
    table[rows[wanted]] = values[wanted].float()
    return table


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _residual_config(
    config: SemanticIdsConfig, sizes: tuple[int, ...], seed: int
) -> ResidualKMeansConfig:
    # Codes of behaviour have about as many items each.
    kmeans = KMeansConfig(balanced=config.source == BEHAVIOUR)
    return ResidualKMeansConfig(level_sizes=sizes, kmeans=kmeans, seed=seed)


def _aligned(made: NextVersion, previous: SemanticIdVersion) -> NextVersion:
    """Rename codes after the published ones where the levels are the same."""
    ids, old = made.ids, previous.ids
    if ids.level_sizes != old.level_sizes:
        return replace(made, ids=replace(ids, parent=old.version))
    alignment = align(ids, made.quantizer, old)
    return replace(
        made, ids=alignment.ids, quantizer=alignment.quantizer, how="aligned", kept=alignment.kept
    )
