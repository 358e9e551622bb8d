"""A delta: new item rows appended to a released bundle, so that fresh items are served at once.

``bundle-<v>+<n>`` holds the ids, texts, categories, properties and vectors of all items since the
release and names its parent, ``bundle-<v>`` in the same folder, by digest. Rows are only ever
appended: a delta changes no older row. New items have no co-occurrences and popularity 0; they are
found by content: by the two-tower, and by their semantic IDs if the parent has any.

Axes: R new items, D width of item vectors, F width of content embeddings, L levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import recsys.models.names as names
from recsys.data.durable import new_directory
from serving.bundle.arrays import check_rows, load_array, reading
from serving.bundle.catalogue import Catalogue
from serving.bundle.manifest import Dimensions, Link, Parent, bundle_directory, read_chain, seal
from serving.bundle.properties import Properties, load_properties
from serving.bundle.semantic_ids import ItemSemanticIds, NewIds, check_source

Vectors = NDArray[np.float32]
TWO_TOWER = names.TWO_TOWER.name
CONTENT, ITEM_VECTORS = "content/content.npy", f"{TWO_TOWER}/item_vectors.npy"


@dataclass(frozen=True, kw_only=True)
class NewItem:
    """An item that appeared after the parent was released."""

    item_id: str
    display_text: str
    categories: Sequence[str] = ()
    """Names; ones the parent does not know become new category rows."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """By name, as `bundle.properties.build_column` takes them; ones that the bundle does not
    have are not kept."""


def read_semantic_ids(
    chain: Sequence[Link], released: ItemSemanticIds | None = None
) -> ItemSemanticIds | None:
    """Read the semantic IDs of a chain and hold each link's version against its manifest.

    Args:
        released: Those of the first link, where they are loaded already.
    """
    found = released
    for link in chain:
        directory, says = link.directory, link.manifest.semantic_ids
        num_item_rows = link.manifest.dimensions.num_item_rows
        if link.manifest.kind == "bundle":
            if found is None and says is not None:
                found = ItemSemanticIds.load(directory, says.version)
        elif found is not None:
            no_ids = NewIds.none(num_item_rows - found.num_item_rows, found.ids.num_levels)
            with reading(directory / "semantic_ids"):
                found = found.extended(NewIds.load(directory) or no_ids)
        if found is not None:
            check_rows(directory / "semantic_ids", (found.num_item_rows,), (num_item_rows,))
        check_source(directory, found, says)
    return found


@dataclass(frozen=True, kw_only=True)
class Delta:
    """New rows, read from disk."""

    directory: Path
    dimensions: Dimensions
    added: Catalogue
    """The new items; its categories are rows of the parent's table with the new names after."""
    properties: Properties
    """Properties of the new items."""
    content: Vectors
    """[R, F]."""
    item_vectors: Vectors
    """[R, D]; D = 0 without a two-tower."""

    @classmethod
    def load(cls, link: Link) -> Delta:
        added = Catalogue.load(link.directory)
        vectors = np.zeros((added.num_item_rows - 1, 0), np.float32)
        if TWO_TOWER in link.manifest.models:
            vectors = load_array(link.directory / ITEM_VECTORS, np.float32, 2).view(np.float32)
        content = load_array(link.directory / CONTENT, np.float32, 2)
        return cls(
            directory=link.directory,
            dimensions=link.manifest.dimensions,
            added=added,
            properties=load_properties(link.directory, link.manifest),
            content=content.view(np.float32),
            item_vectors=vectors,
        )

    @property
    def num_new_items(self) -> int:
        return self.added.num_item_rows - 1

    def extend(self, parent: Catalogue) -> Catalogue:
        """Append the new items to the parent's."""
        extended = parent.extended(self.added)
        found = (extended.num_item_rows, extended.num_category_rows)
        expected = (self.dimensions.num_item_rows, self.dimensions.num_category_rows)
        check_rows(self.directory, found, expected)
        extended.check(self.directory)
        return extended

    def extend_properties(self, parent: Properties) -> Properties:
        """Append the new items' properties to the parent's."""
        if self.properties.kinds != parent.kinds:
            raise ValueError(
                f"{self.directory} has properties {self.properties.kinds}, its parent has "
                f"{parent.kinds}; make the delta again"
            )
        self.properties.check(self.directory, self.added.num_item_rows)
        return parent.extended(self.properties)


def write_delta(
    bundles_dir: Path,
    parent_version: str,
    items: Sequence[NewItem],
    *,
    content: Vectors,
    item_vectors: Vectors | None,
    semantic_ids: NewIds | None = None,
) -> Path:
    """Write the delta that follows a bundle or a delta.

    It holds the items of the delta that it follows, so that a parent is always a bundle.

    Args:
        items: At least one, with ids that the parent does not have.
        content: Content embeddings of the new items, [R, F].
        item_vectors: TwoTower.item_vectors of the new items (item row 0), [R, D]; None where the
            bundle has no two-tower.

    Returns:
        The delta's directory, ``bundle-<v>+<n>`` with the next n that is free.
    """
    chain = read_chain(bundle_directory(bundles_dir, parent_version).resolve())
    base, newest = chain[0], chain[-1]
    vectors = _check_vectors(chain, len(items), content, item_vectors)
    if (ids := read_semantic_ids(chain)) is not None:
        ids = ids.extended(semantic_ids or NewIds.none(len(items), ids.ids.num_levels))
    elif semantic_ids is not None:
        raise ValueError(f"bundle {parent_version} has no semantic IDs that could be extended")
    earlier = Delta.load(newest) if newest is not base else None
    released = Catalogue.load(base.directory)
    parent = released if earlier is None else earlier.extend(released)
    added = _build_catalogue(items, parent)
    kinds = newest.manifest.properties
    values = {name: [item.properties.get(name) for item in items] for name in kinds}
    properties = Properties.of_values(kinds, values)
    dimensions = newest.manifest.dimensions.model_copy(
        update={
            "num_item_rows": parent.num_item_rows + len(items),
            "num_category_rows": parent.num_category_rows + added.num_category_rows - 1,
        }
    )
    final = bundle_directory(bundles_dir, _next_version(bundles_dir, base.manifest.version))
    with new_directory(final) as directory:
        if earlier is not None:
            added = earlier.added.extended(added)
            properties = earlier.properties.extended(properties)
            before = {CONTENT: earlier.content, ITEM_VECTORS: earlier.item_vectors}
            vectors = {path: np.concatenate([before[path], vectors[path]]) for path in vectors}
        added.save(directory)
        properties.save(directory)
        for path, array in vectors.items():
            (directory / path).parent.mkdir()
            np.save(directory / path, np.asarray(array, np.float32))
        if ids is not None:
            new_ids = ids.since(released.num_item_rows)
            if semantic_ids is not None or new_ids.id_rows.any():
                new_ids.save(directory)
        manifest = seal(
            directory,
            kind="delta",
            version=final.name.removeprefix("bundle-"),
            parent=Parent(version=base.manifest.version, digest=base.digest),
            dimensions=dimensions,
            properties=properties.kinds,
            models=newest.manifest.models,
            specs=newest.manifest.specs,
            content=newest.manifest.content,
            semantic_ids=ids.source if ids else None,
        )
        Delta.load(Link(directory, manifest, "")).extend(released)
    return final


def _next_version(bundles_dir: Path, released: str) -> str:
    """Return the name after those of all deltas of a bundle, rolled back ones included."""
    stem = f"bundle-{released}+"
    counts = [path.name.removeprefix(stem) for path in bundles_dir.glob(f"{stem}*")]
    return f"{released}+{1 + max((int(count) for count in counts if count.isdigit()), default=0)}"


def _check_vectors(
    chain: Sequence[Link], num_new: int, content: Vectors, item_vectors: Vectors | None
) -> dict[str, Vectors]:
    """Hold the new items' vectors against the bundle's, and name their files."""
    if not num_new:
        raise ValueError("a delta needs at least one new item")
    base = chain[0]
    found = {CONTENT: content}
    if TWO_TOWER in base.manifest.models:
        if item_vectors is None:
            raise ValueError("the bundle has a two-tower: give the new items' item_vectors")
        found[ITEM_VECTORS] = item_vectors
    for path, array in found.items():
        width = load_array(base.directory / path, np.float32, 2).shape[1]
        if array.shape != (num_new, width):
            name = path.rpartition("/")[2].removesuffix(".npy")
            raise ValueError(
                f"{name} of the new items must be {(num_new, width)}, got {array.shape}"
            )
    if TWO_TOWER not in base.manifest.models and not content.shape[1]:
        raise ValueError(
            f"bundle {base.manifest.version} has neither a two-tower nor content embeddings, so "
            "nothing would find new items; release a whole bundle with them instead"
        )
    return found


def _build_catalogue(items: Sequence[NewItem], parent: Catalogue) -> Catalogue:
    """Build the table of new items; their categories are rows of the parent's and new ones."""
    rows: dict[str, int] = {}
    values: list[int] = []
    offsets = [0, 0]
    for item in items:
        for name in item.categories:
            row = parent.category_names.row_of(name)
            if row is None:
                row = rows.setdefault(name, parent.num_category_rows + len(rows))
            values.append(row)
        offsets.append(len(values))
    return Catalogue.from_lists(
        item_ids=[item.item_id for item in items],
        display_texts=[item.display_text for item in items],
        category_names=list(rows),
        category_values=np.array(values, np.int64),
        category_offsets=np.array(offsets, np.int64),
    )
