"""Prices, stock and other numbers of items, from a file or a database to running servers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from features.reading.databases import DatabaseTable, is_address
from pipelines.publishing.append_items import bundle_source, read_items
from recsys.data.durable import replace_file
from serving.bundle.arrays import Numbers
from serving.bundle.load import Bundle
from serving.bundle.properties import NumberColumn, build_column
from serving.live import LiveProperties, live_path


class Synced(NamedTuple):
    """Counts of one sync."""

    num_items: int
    """Rows of the source whose items the bundle knows."""
    num_unknown: int
    changed: Mapping[str, int]
    """Items whose value changed, by property."""
    left_out: tuple[str, ...]
    """Properties of texts and lists, which stay as released."""


def write_live(bundle: Bundle, values: Mapping[str, Numbers]) -> None:
    """Write the values of every item row for servers of a bundle; files of others go."""
    path = live_path(bundle)
    path.parent.mkdir(exist_ok=True)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **values)

    replace_file(path, write)
    for other in path.parent.glob("*.npz"):
        if other != path:
            other.unlink(missing_ok=True)


def sync(source: str, bundle: Bundle) -> Synced:
    """Read the properties of items, and publish them if a value changed.

    Items that the source lacks keep their values; an empty value is unknown and passes no filter.

    Raises:
        ValueError: A source that cannot be read, lacks every property, or has a value of a wrong
            kind. Nothing is published then.
    """
    items, columns = _read(source, bundle), bundle.properties.columns
    numbers = {name: one for name, one in columns.items() if isinstance(one, NumberColumn)}
    if not (names := [name for name in numbers if name in items.columns]):
        raise ValueError(
            f"the source has the columns {items.columns}, and none of the numbers, dates and "
            f"booleans that items of bundle {bundle.version} have: {', '.join(numbers) or 'none'}"
        )
    rows = np.array([bundle.catalogue.row_of(one) or 0 for one in items["item_id"]], np.int64)
    known = rows > 0
    published = LiveProperties(bundle).read()
    renewed = {name: published.get(name, column.values) for name, column in numbers.items()}
    changed = {}
    for name in names:
        given = build_column(name, numbers[name].kind, items[name].to_list())
        assert isinstance(given, NumberColumn)
        values = renewed[name].copy()
        values[rows[known]] = given.values[1:][known]
        differs = ~((values == renewed[name]) | (np.isnan(values) & np.isnan(renewed[name])))
        changed[name], renewed[name] = int(differs.sum()), values
    if any(changed.values()):
        write_live(bundle, renewed)
    left_out = tuple(name for name in columns if name in items.columns and name not in numbers)
    return Synced(int(known.sum()), int((~known).sum()), changed, left_out)


def _read(source: str, bundle: Bundle) -> pl.DataFrame:
    if not is_address(source):
        return read_items(bundle_source(bundle, Path(source)))
    table = DatabaseTable.parse(source)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{table.name}.parquet"
        table.read().write_parquet(path)
        return read_items(bundle_source(bundle, path))
