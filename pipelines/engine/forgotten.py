"""The list of forgotten users: whoever is on it is left out of every preparation from then on.

    {"format": 1, "users": {"<SHA-256 of the id>": <unix ms>}}

It lies in the workspace, or where ``data.forgotten`` says: beside raw files that several runs
read, it outlives any workspace. Users whom the online store has forgotten are added at each run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from recsys.data.durable import locked, write_durably

LIST, FORMAT = "forgotten.json", 1


def list_path(config: RunConfig) -> Path:
    """Say where a run's list lies; it is there once somebody was forgotten."""
    return config.data.forgotten or config.workspace / LIST


def forgotten_users(config: RunConfig) -> dict[str, int]:
    """Read a run's list; nobody where there is none.

    Raises:
        ValueError: It is no such list.
    """
    return read_list(list_path(config))


def read_list(path: Path) -> dict[str, int]:
    """Read a list; nobody where there is none.

    Raises:
        ValueError: It is damaged or something else: nobody may come back because of it.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
        return {str(user): int(at) for user, at in document["users"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no list of forgotten users ({error}); restore it: a run without it would "
            "bring back whoever is on it"
        ) from error


def add_to_list(path: Path, found: Mapping[str, int]) -> int:
    """Add users with the unix ms at which they were forgotten; returns how many are new or later.

    Raises:
        ValueError: The file is no such list.
    """
    if not found:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        users = read_list(path)
        later = {user: at for user, at in found.items() if users.get(user, -1) < at}
        if later:
            document = {"format": FORMAT, "users": dict(sorted({**users, **later}.items()))}
            write_durably(path, to_json(document))
    return len(later)
