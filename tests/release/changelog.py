"""The rules of versions and of the changelog.

    python -m tests.release.changelog      says what is wrong with them, if anything

``## Unreleased`` may stand first; every other heading is ``## 1.2.3 (2026-11-23)``, newest first. A
version is one step after the one below it: of semver's three numbers one is raised by 1 and those
right of it are 0. The package's version is the newest one with a date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNRELEASED = "Unreleased"
HEADING = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*) \((\d{4}-\d\d-\d\d)\)")

Version = tuple[int, int, int]
Release = tuple[Version, date]


def next_versions(version: Version) -> set[Version]:
    """Return the three versions that may follow one."""
    major, minor, patch = version
    return {(major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0)}


def written(version: Version) -> str:
    """Write a version."""
    return ".".join(map(str, version))


def read_headings(headings: list[str]) -> tuple[list[Release], list[str]]:
    """Return the released versions, newest first, and what is wrong with other headings."""
    released: list[Release] = []
    found: list[str] = []
    for place, heading in enumerate(headings):
        if heading == UNRELEASED:
            if place:
                found.append(f"'## {UNRELEASED}' must be the first heading")
        elif match := HEADING.fullmatch(heading):
            major, minor, patch, day = match.groups()
            version = (int(major), int(minor), int(patch))
            released.append((version, date.fromisoformat(day)))
        else:
            found.append(f"'## {heading}': write '## 1.2.3 (2026-11-23)' or '## {UNRELEASED}'")
    return released, found


def wrong_steps(released: list[Release], today: date) -> list[str]:
    """Return what is wrong with the order of versions and days."""
    found = []
    for (newer, newer_day), (older, older_day) in pairwise(released):
        if newer not in next_versions(older):
            allowed = ", ".join(map(written, sorted(next_versions(older))))
            found.append(f"{written(newer)} follows {written(older)}: write one of {allowed}")
        if newer_day < older_day:
            found.append(f"{written(newer)} is of a day before {written(older)}")
    if released and released[0][1] > today:
        found.append(f"{written(released[0][0])} is dated {released[0][1]}, in the future")
    return found


def faults(changelog: str, version: str, today: date, *, releasing: bool = False) -> list[str]:
    """Return what is wrong.

    Args:
        version: The package's.
        releasing: There is to be nothing that is not released.
    """
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    released, found = read_headings(headings)
    found += wrong_steps(released, today)
    newest = written(released[0][0]) if released else "none"
    if version != newest and (released or releasing):
        found.append(
            f"the package's version is {version}, the newest of CHANGELOG.md {newest}: make them "
            "one"
        )
    if releasing and UNRELEASED in headings:
        found.append(f"'## {UNRELEASED}' is there: give it a version and a date")
    return [*found, *empty_sections(changelog)]


def empty_sections(changelog: str) -> list[str]:
    """Return a fault for each released version that says nothing."""
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    empty = [name for name, text in pairs if name != UNRELEASED and not text.strip()]
    return [f"'## {name}' says nothing" for name in empty]


def of_tree(*, releasing: bool = False) -> list[str]:
    """Return what is wrong with this tree's changelog and version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return faults(text, project["version"], datetime.now(UTC).date(), releasing=releasing)


if __name__ == "__main__":
    if wrong := of_tree(releasing=True):
        sys.exit("\n".join(wrong))
