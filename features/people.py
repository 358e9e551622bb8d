"""Users who are to be forgotten: no build has rows of what they did until then.

The list holds a keyed hash of each id, not the id: see `features.forget_list`. Events after a user
was forgotten are those of a new user. Raw files stay as
they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.encoding import Codes, Dictionary
from features.events import as_text
from features.forget_list import APPLIED as APPLIED
from features.forget_list import ForgetList
from features.reading.scan import batches, renamed, scan_file
from features.schema import USER_ID, SourceConfig

FORGOTTEN = "user was forgotten"
"""Why a row is left out."""
NEVER = -1
NAME = "(forgotten {})"
"""Stands for an id in a vocabulary whose rows have to stay."""


class ForgottenUsers:
    """Finds rows of forgotten users, and counts those that were left out."""

    def __init__(self, until: ForgetList) -> None:
        self.until = until
        self.counts: Counter[str] = Counter()
        """Rows that were left out, by table."""
        self._by_code: NDArray[np.int64] = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return bool(self.until)

    def moments(self, ids: pl.Series) -> NDArray[np.int64]:
        """When each user was forgotten, unix ms; -1 for who was not, [n]."""
        found = (self.until.moment(one or "") for one in ids.to_list())
        return np.fromiter((NEVER if at is None else at for at in found), np.int64, len(ids))

    def events(
        self, dictionary: Dictionary, users: Codes, times: pl.Series | None
    ) -> NDArray[np.bool_]:
        """Mark events of users that happened until they were forgotten, [E].

        Args:
            users: Codes of the events' users, [E].
        """
        known = len(self._by_code)
        if dictionary.size > known:
            fresh = dictionary.texts(np.arange(known, dictionary.size, dtype=np.uint32))
            self._by_code = np.concatenate([self._by_code, self.moments(fresh)])
        until = np.append(self._by_code, NEVER)[np.minimum(users, len(self._by_code))]
        gone: NDArray[np.bool_] = until != NEVER
        if times is not None and gone.any():
            gone &= times.fill_null(0).to_numpy() <= 1_000 * until + 999
        return gone

    def rows(self, table: str, ids: pl.Series) -> NDArray[np.bool_]:
        """Mark rows of forgotten users in a table without times, [n]."""
        gone: NDArray[np.bool_] = self.moments(ids.cast(pl.String)) != NEVER
        self.counts[table] += int(np.count_nonzero(gone))
        return gone

    def renamed(self, ids: pl.Series, applied: Mapping[str, int]) -> pl.Series:
        """Take the ids of forgotten users out of a vocabulary whose rows stay."""
        moments = self.until.moments.items()
        later = {user: at for user, at in moments if applied.get(user, NEVER) < at}
        since = ForgottenUsers(replace(self.until, moments=later))
        places = np.flatnonzero(since.moments(ids) != NEVER)
        names = [NAME.format(place + 1) for place in places.tolist()]
        return ids.scatter(places, names) if names else ids


def read_applied(artefact: Path) -> dict[str, int]:
    """Read who was left out of an artefact."""
    path = artefact / APPLIED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def count_rows(path: Path, source: SourceConfig, user_ids: Collection[str]) -> int:
    """Count the rows of users in a file."""
    frame = renamed(scan_file(path, source), path, source, (USER_ID,))
    of_them = _is_user(frame, USER_ID, user_ids).sum().alias("found")
    columns = frame.select(pl.col(USER_ID))
    return sum(int(part.select(of_them).item()) for _, part in batches(columns, path))


def _is_user(frame: pl.LazyFrame, column: str, user_ids: Collection[str]) -> pl.Expr:
    return as_text(column, frame.collect_schema()[column]).is_in(list(user_ids))
