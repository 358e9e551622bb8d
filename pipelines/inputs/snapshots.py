"""Snapshots of tables in databases: a run reads files, <workspace>/snapshots/events.parquet.

The configuration that the workspace keeps names them, so a run of the workspace repeats what was
done, and one of the TOML file reads the database again. The stage keeps their SHA-256.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from features.reading.databases import DatabaseTable, is_address
from pipelines.config.run import RunConfig
from recsys.data.durable import replace_file

Say = Callable[[str], None]


def snapshots(config: RunConfig) -> Path:
    """Return the folder of a run's snapshots."""
    return config.workspace.absolute() / "snapshots"


def with_snapshots(config: RunConfig, say: Say = lambda _line: None) -> RunConfig:
    """Read the tables that are in databases, and point the configuration at the snapshots."""
    folder, changed = snapshots(config), dict[str, Any]()
    for name, places in config.data.tables().items():
        found = list(places)
        for number, place in enumerate(places):
            if is_address(place):
                path = folder / f"{name}{number or ''}.parquet"
                found[number] = _take(str(place), path, say)
            elif Path(place).parent == folder:
                say(f"{place} as it was read; a run of the TOML file reads the database again")
        if found != list(places):
            changed[name] = tuple(found) if name == "events" else found[0]
    return replace(config, data=replace(config.data, **changed))


def _take(address: str, path: Path, say: Say) -> Path:
    begin, table = time.perf_counter(), DatabaseTable.parse(address)
    try:
        rows = table.read()
    except ValueError as error:
        raise ValueError(f"data.{path.stem}: {error}") from error
    if rows.is_empty():
        raise ValueError(f"data.{path.stem}: {address} has no rows; check the query and its dates")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, rows.write_parquet)
    seconds = time.perf_counter() - begin
    say(f"{path.stem}: {rows.height:,} rows of {table.kind} in {seconds:.1f} s, kept as {path}")
    return path
