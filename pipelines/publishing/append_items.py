"""Append new items to a released bundle as a delta, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from features.reading.scan import read_whole, scan_file
from features.schema import SourceConfig
from pipelines.config.toml import validate
from pipelines.engine.decisions import Decision
from pipelines.engine.workspace import publishing
from pipelines.publishing.encode_items import content_config, encode_items, item_vectors
from pipelines.publishing.promotion import note_champion, served_version
from pipelines.semantic_ids.append import published_ids
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import CURRENT, read_manifest

LIST_SEPARATOR = "|"


def bundle_source(bundle: Bundle, path: Path) -> SourceConfig:
    """Read a file of items as those of a bundle were read."""
    table = {} if bundle.manifest.content is None else bundle.manifest.content.table
    fields = {**table, "paths": [str(path)]}
    return validate(SourceConfig, fields, f"{bundle.directory}/manifest.json")


def read_items(source: SourceConfig) -> pl.DataFrame:
    """Read new items; a ValueError names the file, the column or the row at fault."""
    path = source.paths[0]
    present = scan_file(path, source).collect_schema().names()
    # A file of new items may lack any column but the id.
    columns = {
        ours: theirs
        for ours, theirs in source.columns.items()
        if theirs in ("", *present) or (ours == "item_id" and ours not in present)
    }
    items = read_whole(path, replace(source, columns=columns), ("item_id",))
    items = items.with_columns(pl.col("item_id").cast(pl.String))
    empty = items["item_id"].is_null() | (items["item_id"] == "")
    if empty.any():
        raise ValueError(f"{path}, row {empty.arg_max()}: item_id is empty; give every item an id")
    if (twice := items["item_id"].filter(items["item_id"].is_duplicated())).len():
        raise ValueError(f"{path} names item_id {twice[0]!r} more than once; keep one row of it")
    if items.schema.get("categories") == pl.String:
        items = items.with_columns(pl.col("categories").str.split(source.list_separator))
    return items


def new_item(row: Mapping[str, Any], bundle: Bundle) -> NewItem:
    """Build an item from its row, with the properties that the bundle has."""
    return NewItem(
        item_id=row["item_id"],
        display_text=str(row.get("title") or row.get("description") or row["item_id"]),
        categories=[name for name in row.get("categories") or [] if name],
        properties={
            name: value.split(LIST_SEPARATOR)
            if kind == "list" and isinstance(value, str)
            else value
            for name, kind in bundle.properties.kinds.items()
            for value in [row.get(name)]
        },
    )


def append(source: Path, bundle_path: Path) -> tuple[Path, int, Decision]:
    """Write and publish a delta with the items of a file.

    Returns:
        The delta's directory, its number of items, and the moved alias.

    Raises:
        WorkspaceBusyError: Another publisher is at work.
        ValueError: If the file is at fault, an item is known already, nothing in the bundle would
            find new items, or another bundle was published meanwhile.
    """
    directory = bundle_path.resolve()
    bundles, served = directory.parent, served_version(directory.parent)
    bundle = load_bundle(directory)
    items = read_items(bundle_source(bundle, source))
    config, rows = content_config(bundle, directory), list(items.iter_rows(named=True))
    if known := [one for one in items["item_id"] if bundle.catalogue.row_of(one)]:
        raise ValueError(
            f"{source}: {len(known)} items are in the bundle already, the first is {known[0]!r}; "
            "leave them out, the next run updates them"
        )
    content = encode_items(rows, config, bundle, directory)
    new = [new_item(row, bundle) for row in rows]
    vectors = item_vectors(bundle, new, content)
    with publishing(bundles):
        if (now := served_version(bundles)) != served:
            raise ValueError(
                f"while the new items were encoded, {bundles / CURRENT} moved from bundle-{served} "
                f"to bundle-{now}; nothing was written. Run the command again"
            )
        ids = None
        if bundle.semantic_ids is not None:
            ids = published_ids(bundle, bundles, items["item_id"].to_list(), content)
        delta = write_delta(
            bundles, bundle.version, new, content=content, item_vectors=vectors, semantic_ids=ids
        )
        words = [f"{len(new)} items were appended."]
        change = note_champion(bundles, read_manifest(delta)[0].version, "append", words=words)
    return delta, len(new), change
