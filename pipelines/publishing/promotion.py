"""Champion and challenger: the link that serving follows, the registry's aliases, their history.

A release that passed its checks becomes champion at once, unless ``release.promote`` is false;
then it is the challenger until ``recsys promote`` makes it champion. The first bundle is always
champion, since there is nothing else to serve.

The history, ``aliases.jsonl`` beside the bundles, is the truth; the registry gets it through the
outbox, whenever it can be reached.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.config.tracking import TrackingConfig
from pipelines.tracking.outbox import Outbox, read_lines
from recsys.data.durable import append_line
from serving.bundle.manifest import CURRENT, bundle_directory, publish

HISTORY = "aliases.jsonl"
CHAMPION = "champion"
CHALLENGER = "challenger"


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """An alias began to name a version."""

    time: str
    alias: str
    version: str
    previous: str | None
    action: str
    """``release``, ``promote`` or ``rollback``."""


def history(bundles: Path) -> list[AliasChange]:
    """Read every change of an alias, oldest first; a line torn by a kill is left out."""
    path = bundles / HISTORY
    if not path.exists():
        return []
    return [AliasChange(**event) for _, event in read_lines(path)]


def champions(bundles: Path) -> list[str]:
    """List the champions that a rollback can go back to, the present one last."""
    stack: list[str] = []
    for change in history(bundles):
        if change.alias != CHAMPION:
            continue
        if change.action == "rollback" and change.version in stack:
            while stack[-1] != change.version:
                stack.pop()
        elif stack[-1:] != [change.version]:
            stack.append(change.version)
    return stack


def challenger(bundles: Path) -> str | None:
    """Name the last released version that did not become champion; None without one."""
    waiting = None
    for change in history(bundles):
        if change.alias == CHALLENGER:
            waiting = change.version
        elif change.version == waiting:
            waiting = None
    return waiting


def note_release(bundles: Path, version: str, *, promoted: bool) -> str:
    """Publish a bundle that was just written, or keep it as challenger; return its alias.

    Args:
        promoted: Whether it becomes champion though there is another one.
    """
    if not promoted and (bundles / CURRENT).exists() and champions(bundles)[-1:] != [version]:
        note_alias(bundles, CHALLENGER, version, "release")
        return CHALLENGER
    publish(bundles, version)
    note_alias(bundles, CHAMPION, version, "release")
    return CHAMPION


def note_alias(bundles: Path, alias: str, version: str, action: str) -> AliasChange:
    """Append a change to the history, durably."""
    before = [change.version for change in history(bundles) if change.alias == alias]
    change = AliasChange(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        alias=alias,
        version=version,
        previous=before[-1] if before else None,
        action=action,
    )
    append_line(bundles / HISTORY, json.dumps(asdict(change), sort_keys=True))
    return change


def promote(
    bundles: Path, version: str | None, *, config: TrackingConfig, outbox: Outbox | None = None
) -> AliasChange:
    """Serve a version as champion.

    Args:
        bundles: Folder of the bundles.
        version: None takes the challenger.
        outbox: Where the change is logged for the registry.

    Raises:
        ValueError: If there is no such bundle, or a file of it is missing or altered.
    """
    version = version or challenger(bundles)
    if version is None:
        raise ValueError(f"no challenger in {bundles}; name a version: {listed(bundles)}")
    if not bundle_directory(bundles, version).is_dir():
        raise ValueError(f"no bundle {version!r} in {bundles}; there are: {listed(bundles)}")
    return make_champion(bundles, version, "promote", config, outbox)


def rollback(bundles: Path, *, config: TrackingConfig, outbox: Outbox | None = None) -> AliasChange:
    """Serve the champion before this one again; once more goes back one further.

    Raises:
        ValueError: If there was none before, or its bundle is gone or altered.
    """
    stack = champions(bundles)
    if len(stack) < 2:
        now = f"{stack[0]} is the first champion" if stack else "there was no champion yet"
        raise ValueError(f"nothing to go back to in {bundles}: {now}")
    version = stack[-2]
    if not bundle_directory(bundles, version).is_dir():
        raise ValueError(
            f"the champion before this one, {version}, is no longer in {bundles}; promote one "
            f"that is: {listed(bundles)}"
        )
    return make_champion(bundles, version, "rollback", config, outbox)


def make_champion(
    bundles: Path, version: str, action: str, config: TrackingConfig, outbox: Outbox | None
) -> AliasChange:
    """Point ``current`` at a version, then record it."""
    was_challenger = challenger(bundles) == version
    publish(bundles, version)
    change = note_alias(bundles, CHAMPION, version, action)
    if outbox is not None and config.enabled:
        run = outbox.new_file(action)
        run.alias(config.model, CHAMPION, version, action=action)
        if was_challenger:
            run.alias(config.model, CHALLENGER, None, action=action)
        run.end("FINISHED")
    return change


def listed(bundles: Path) -> str:
    """Name the versions in a folder of bundles."""
    found = sorted(path.name.removeprefix("bundle-") for path in bundles.glob("bundle-*"))
    return ", ".join(found) or "none"
