"""Digest every array, table and metric of a run's workspace, and compare two such records.

    python -m tests.benchmarks.artefact_digests record runs/my-shop before.json
    python -m tests.benchmarks.artefact_digests compare before.json after.json

A change that should not alter what the product computes proves it so: record the workspace of the
same run before and after, on one thread, and compare. Arrays count by type, shape and bytes,
Parquet by column, JSON by value. Manifests, run.json, settings and digests of code are left out.
``--renames`` is a JSON object of texts in paths and keys that were renamed on purpose.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file

LEFT_OUT = {"manifest.json", "run.json", "state.json", "ledger.jsonl"}
TIMES = ("seconds", "started", "_at", "date", "host")
CODE = re.compile(
    r"per_user_\w+\.parquet:run$|release\.json:0/(digest|version)$|/provenance/"
    r"|config\.json:0/config/|/making|_digest$"
)
"""Values that hold a digest of code or settings."""


def digest(array: np.ndarray[Any, Any]) -> str:
    """Hash an array's type, shape and bytes."""
    described = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(described + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List a document's values by their path; times are left out."""
    if isinstance(value, dict):
        for key, below in value.items():
            if not any(word in str(key) for word in TIMES):
                yield from leaves(below, f"{path}/{key}")
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from leaves(below, f"{path}/{place}")
    else:
        yield path, value


def arrays(path: Path) -> Iterator[tuple[str, Any]]:
    """Digest the arrays or columns of one file."""
    if path.suffix == ".npy":
        yield "", digest(np.load(path, allow_pickle=False))
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            yield from ((f":{name}", digest(file[name])) for name in sorted(file.files))
    elif path.suffix == ".safetensors":
        yield from ((f":{name}", digest(one)) for name, one in sorted(load_file(path).items()))
    else:
        table = pl.read_parquet(path)
        for column in table.columns:
            text = table.select(column).write_json().encode()
            yield f":{column}", hashlib.sha256(text).hexdigest()[:16]


def contents(path: Path) -> Iterator[tuple[str, Any]]:
    """List what one file holds: digests of arrays and columns, values of documents."""
    if path.suffix in (".npy", ".npz", ".safetensors", ".parquet"):
        yield from arrays(path)
    elif path.suffix in (".json", ".jsonl"):
        text = path.read_text()
        lines = [text] if path.suffix == ".json" else text.splitlines()
        for place, line in enumerate(lines):
            yield from ((f":{place}{name}", value) for name, value in leaves(json.loads(line)))
    elif path.suffix not in (".html", ".lock", ".toml"):
        yield "", hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def record(workspace: Path) -> dict[str, Any]:
    """Digest everything below a workspace; a bundle counts by its place, not by its version."""
    found: dict[str, Any] = {}
    for path in sorted(workspace.rglob("*")):
        inside = path.relative_to(workspace)
        if not path.is_file() or path.name in LEFT_OUT or inside.parts[0].startswith("."):
            continue
        if inside.parts[0] == "bundles" and "current" not in inside.parts:
            continue
        for name, value in contents(path):
            found[f"{inside}{name}"] = value
    current = workspace / "bundles/current"
    if current.exists():
        for path in sorted(current.resolve().rglob("*")):
            if path.is_file() and path.name not in LEFT_OUT:
                for name, value in contents(path):
                    found[f"bundle/{path.relative_to(current.resolve())}{name}"] = value
    return found


def renamed(record: dict[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    """Leave out what holds digests of code, and apply renames to paths, keys and texts."""

    def apply(text: str) -> str:
        for old, new in renames.items():
            text = text.replace(old, new)
        return text

    return {
        apply(name): apply(value) if isinstance(value, str) else value
        for name, value in record.items()
        if not CODE.search(name)
    }


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name everything that is not equal to the last bit."""
    lines = [f"only before: {name}" for name in before.keys() - after.keys()]
    lines += [f"only after: {name}" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if one != other:
            lines.append(f"differs: {name}: {one!r} and {other!r}")
    return sorted(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--renames", type=Path)
    options = parser.parse_args()
    if options.verb == "record":
        found = record(options.first)
        options.second.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
        print(f"{len(found):,} values of {options.first}")
        return 0
    renames = json.loads(options.renames.read_text()) if options.renames else {}
    before = renamed(json.loads(options.first.read_text()), renames)
    after = renamed(json.loads(options.second.read_text()), {})
    lines = compare(before, after)
    print("\n".join(lines) or f"all {len(before):,} values are equal to the last bit")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
