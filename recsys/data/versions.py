"""Versions of libraries, which must be equal on all nodes."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version


def own_versions(libraries: Iterable[str]) -> dict[str, str]:
    """Describe this process's machine, Python and libraries."""
    found = {"node": platform.node(), "python": platform.python_version()}
    for name in libraries:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def describe_difference(everyone: Iterable[Mapping[str, str]]) -> str | None:
    """Describe the first library of which nodes have several versions; None if all are equal."""
    found = list(everyone)
    for name in found[0] if found else ():
        nodes: dict[str, list[str]] = {}
        for one in found:
            nodes.setdefault(one[name], []).append(one["node"])
        if name != "node" and len(nodes) > 1:
            where = "; ".join(f"{what} on {', '.join(on)}" for what, on in sorted(nodes.items()))
            return f"different versions of {name}: {where}. Install the same lock file on all nodes"
    return None
