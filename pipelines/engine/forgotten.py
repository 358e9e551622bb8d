"""The list of forgotten users: users on it are left out of every later preparation.

    {"format": 2, "users": {"<keyed hash of the id>": <unix ms>}}

It is in the workspace or at ``data.forgotten``: next to raw files that several runs read, it
outlives any workspace. The keys are in ``user.keys`` next to it (`features.forget_list`). Users
whom the online store has forgotten are added at each run, with the keys of the store.
"""

from __future__ import annotations

import json
from pathlib import Path

from features.forget_list import ForgetList, UserKeys
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import write_json
from pipelines.engine.workspace import DailyState
from recsys.data.durable import locked

FORMAT = 2
READ = (1, FORMAT)
"""Hashes of format 1 have no key, which each entry shows."""


def list_path(config: RunConfig) -> Path:
    """Return the path of a run's list, which exists once a user was forgotten."""
    return config.data.forgotten or DailyState(config.workspace).forgotten


def forgotten_users(config: RunConfig) -> ForgetList:
    """Read a run's list; empty if there is none."""
    return read_list(list_path(config))


def read_list(path: Path) -> ForgetList:
    """Read a list; empty if there is none."""
    if not path.exists():
        return ForgetList()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] not in READ:
            raise ValueError(f"format {document['format']}, this version reads {READ}")
        users = {str(user): int(at) for user, at in document["users"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no list of forgotten users ({error}); restore it: a run without it would "
            "bring back whoever is on it"
        ) from error
    keys = UserKeys.read(path.parent)
    keys.check(users, path)
    return ForgetList(users, keys)


def add_to_list(path: Path, found: ForgetList) -> int:
    """Add forgotten users and return how many are new or were forgotten later than before."""
    if not found:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        known = read_list(path)
        joined = known | found
        later = [user for user, at in joined.moments.items() if known.moments.get(user) != at]
        if later:
            # Keys first: without them the list cannot be read.
            found.keys.save(path.parent)
            document = {"format": FORMAT, "users": dict(sorted(joined.moments.items()))}
            write_json(path, document)
    return len(later)
