"""A folder of Parquet parts by day that grows: each row once, after kills too.

    OUT/
        exported.json               how far it got, parts with digests, who was forgotten
        user.keys                   what forgotten users' ids are hashed with
        date=2026-11-22/part-1-5000.parquet

A part counts when exported.json names it, and that is replaced last. Rows of users who were
forgotten are taken out of earlier parts: `OUT/date=.../part-1-5000~1.parquet` then takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import polars as pl

from features.forget_list import KEYS, NOBODY, ForgetList, UserKeys
from pipelines.engine.artifacts import write_json
from pipelines.engine.errors import WorkspaceBusyError
from recsys.data.durable import PARTIAL, digest_of_file, locked, replace_file

EXPORTED, LOCK = "exported.json", ".lock"
REQUESTS = "requests"
"""Folder of served lists in that of the events."""
FORMAT = 1
RECORDS = "records"
"""Folder of their records, which earlier versions wrote; users are still forgotten in it."""
RECEIVED_TIME = "received_time"
"""When a row's event arrived or its list was served: its day is the folder."""


@dataclass(frozen=True, kw_only=True)
class ExportedPart:
    """One file."""

    sha256: str
    rows: int


@dataclass(kw_only=True)
class Exported:
    """Content of an export's folder."""

    last: str = ""
    """Key that was read last: an event's place, or a served list's id."""
    parts: dict[str, ExportedPart] = field(default_factory=dict)
    """By path below the folder."""
    forgotten: ForgetList = NOBODY
    """As the store has it."""

    @classmethod
    def read(cls, out: Path) -> Exported:
        """Read what a folder holds; nothing where nothing was exported."""
        path = out / EXPORTED
        if not path.exists():
            return cls()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.pop("format") != FORMAT:
                raise ValueError(f"another format than {FORMAT}")
            parts = {name: ExportedPart(**part) for name, part in found.pop("parts").items()}
            moments = found.pop("forgotten", {})
            exported = cls(parts=parts, forgotten=ForgetList(moments, UserKeys.read(out)), **found)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} does not describe an export of this version ({error}); name another folder"
            ) from error
        exported.forgotten.keys.check(moments, path)
        return exported

    def write(self, out: Path) -> None:
        """Commit the parts that were written."""
        self.forgotten.keys.save(out)
        document = {**vars(self), "forgotten": dict(self.forgotten.moments)}
        document["parts"] = {name: asdict(part) for name, part in self.parts.items()}
        write_json(out / EXPORTED, {"format": FORMAT, **document})

    def add_days(self, out: Path, rows: pl.DataFrame, first: str, last: str) -> None:
        """Write rows by day of arrival, in the order in which they are; none of forgotten users."""
        if self.forgotten:
            # Another server may have stored what arrived before.
            rows = rows.filter(~_is_forgotten(rows, self.forgotten))
        by_day = rows.with_columns(pl.col(RECEIVED_TIME).dt.date().alias("day")).partition_by(
            "day", include_key=False, as_dict=True
        )
        for (date,), part in sorted(by_day.items()):
            name = f"date={date:%Y-%m-%d}/part-{first}-{last}.parquet"
            self.parts[name] = _write(out / name, part)

    def forget(self, out: Path, forgotten: ForgetList) -> int:
        """Take out rows of users that arrived until they were forgotten.

        Returns:
            How many rows went.
        """
        before = self.forgotten.moments
        later = {user: at for user, at in forgotten.moments.items() if before.get(user, -1) < at}
        self.forgotten, since = forgotten, replace(forgotten, moments=later)
        if not since:
            return 0
        removed, replaced = 0, []
        for name in list(self.parts):
            rows = pl.read_parquet(out / name, hive_partitioning=False)
            kept = rows.filter(~_is_forgotten(rows, since))
            if kept.height == rows.height:
                continue
            removed += rows.height - kept.height
            replaced.append(name)
            del self.parts[name]
            if kept.height:
                path = Path(name)
                stem, _, number = path.stem.partition("~")
                rewritten = str(path.with_name(f"{stem}~{int(number or 0) + 1}.parquet"))
                self.parts[rewritten] = _write(out / rewritten, kept)
        self.write(out)
        for name in replaced:
            (out / name).unlink()
        return removed

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts.values())


@contextmanager
def exporting(out: Path) -> Iterator[Exported]:
    """Hold a folder for one export, rid of what a killed one left."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(f"another export writes to {out.absolute()}; wait for it")
        exported = Exported.read(out)
        if not (out / EXPORTED).exists():
            # Files that an export does not name are deleted, so another folder is refused.
            for path in sorted(out.iterdir()):
                if not path.name.startswith(".") and path.name not in (REQUESTS, RECORDS, KEYS):
                    raise ValueError(
                        f"{out} holds {path.name} and is no export; name another folder"
                    )
            exported.write(out)
        for leftover in [*out.glob(f"{PARTIAL}*"), *out.glob(f"date=*/{PARTIAL}*")]:
            leftover.unlink()
        for path in out.glob("date=*/*.parquet"):
            if str(path.relative_to(out)) not in exported.parts:
                path.unlink()
        yield exported


def list_parts(folder: Path) -> list[Path]:
    """List the files of an export, or all Parquet files below a folder that is none."""
    if not folder.is_dir():
        raise ValueError(
            f"data.online_events: there is no folder {folder}; name one that recsys data export "
            "wrote, or a store such as sqlite:runs/shop/online"
        )
    if not (folder / EXPORTED).exists():
        return sorted(folder.glob("**/[!.]*.parquet"))
    paths = [folder / name for name in sorted(Exported.read(folder).parts)]
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{path} is missing; delete {folder} and run recsys data export again")
    return paths


def list_served(folder: Path) -> list[Path]:
    """List the files of the served lists of an export; none if it has no such folder."""
    return list_parts(folder / REQUESTS) if (folder / REQUESTS).is_dir() else []


def scan_parts(paths: Sequence[Path]) -> pl.LazyFrame:
    """Read parts as one table; a column that earlier parts lack is null in them."""
    schema: dict[str, pl.DataType] = {}
    for path in paths:
        schema |= {
            name: kind for name, kind in pl.read_parquet_schema(path).items() if name not in schema
        }
    return pl.scan_parquet(
        list(paths), schema=schema, missing_columns="insert", hive_partitioning=False
    )


def _write(path: Path, part: pl.DataFrame) -> ExportedPart:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, part.write_parquet)
    return ExportedPart(sha256=digest_of_file(path), rows=part.height)


def _is_forgotten(rows: pl.DataFrame, since: ForgetList) -> pl.Series:
    """Mark rows of forgotten users that arrived until they were forgotten."""
    users = rows["user_id"].drop_nulls().unique().to_list()
    at = {user: since.moment(user) for user in users}
    named = {user: moment for user, moment in at.items() if moment is not None}
    if not named:
        return pl.repeat(value=False, n=rows.height, eager=True)
    moments = rows["user_id"].replace_strict(named, default=None, return_dtype=pl.Int64)
    return (rows[RECEIVED_TIME].dt.epoch("ms") <= moments).fill_null(value=False)
