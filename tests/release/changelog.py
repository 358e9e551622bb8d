"""The rules of versions and of the changelog.

    python -m tests.release.changelog      says what is wrong with them, if anything

``## Unreleased`` may stand first; every other heading is ``## 1.2.3 (2026-11-23)``, newest first.
The package's version is the newest one with a date.
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
HEADING = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)")


def faults(changelog: str, version: str, today: date, *, releasing: bool = False) -> list[str]:
    """Return what is wrong.

    Args:
        version: The package's.
        releasing: There is to be nothing that is not released.
    """
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    dated = headings[headings[:1] == [UNRELEASED] :]
    matches = [match for one in dated if (match := HEADING.fullmatch(one))]
    found = [
        f"'## {one}': write '## 1.2.3 (2026-11-23)', below at most one '## {UNRELEASED}'"
        for one in dated
        if not HEADING.fullmatch(one)
    ]
    releases = [(tuple(map(int, one.groups()[:3])), date.fromisoformat(one[4])) for one in matches]
    for (newer, newer_day), (older, older_day) in pairwise(releases):
        if newer <= older or newer_day < older_day:
            found.append(f"{newer} of {newer_day} stands above {older} of {older_day}")
    if releases and releases[0][1] > today:
        found.append(f"the newest version is of {releases[0][1]}, in the future")
    newest = ".".join(matches[0].groups()[:3]) if matches else "none"
    if version != newest and (releases or releasing):
        found.append(
            f"the package's version is {version}, the newest of CHANGELOG.md {newest}: make them "
            "one"
        )
    if releasing and UNRELEASED in headings:
        found.append(f"'## {UNRELEASED}' is there: give it a version and a date")
    return found


def read_tree(*, releasing: bool = False) -> list[str]:
    """Return what is wrong with this tree's changelog and version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return faults(text, project["version"], datetime.now(UTC).date(), releasing=releasing)


if __name__ == "__main__":
    if wrong := read_tree(releasing=True):
        sys.exit("\n".join(wrong))
