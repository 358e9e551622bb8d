"""Settings of an earlier version: refused in a file, read under their new names in a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.config.removed import REMOVED_KEYS, RENAMED_KEYS, removal
from pipelines.config.toml import Table, merge, nested, set_value, without_keys


def upgraded(table: Mapping[str, Any]) -> Table:
    """Rename the keys of an earlier version, and leave out those that were removed."""
    found = dict(table)
    for old, new in RENAMED_KEYS.items():
        if (value := set_value(found, old)) is not None:
            # What a file has under the new name wins.
            found = without_keys(found, [old])
            found = merge(nested(new, value), found)
    return without_keys(found, list(REMOVED_KEYS))


def refuse_old_keys(table: Mapping[str, Any], source: str) -> None:
    """Refuse settings under a name that was renamed or removed."""
    old = (key for key in (*RENAMED_KEYS, *REMOVED_KEYS) if set_value(table, key) is not None)
    if complaints := [f"{source}: {removal(key)}" for key in old]:
        raise ValueError("\n".join(complaints))
