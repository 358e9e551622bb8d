"""Champion and challenger: the link that serving follows, the registry's aliases, their history.

A release that passed its checks becomes champion at once, unless ``release.promote`` is false;
then it is the challenger until ``recsys release promote`` makes it champion. The first bundle is
always champion, since there is nothing else to serve.

The history, ``aliases.jsonl`` beside the bundles, is the truth; the registry gets it through the
outbox, whenever it can be reached.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.config.tracking import TrackingConfig
from pipelines.engine.bundles_lock import PATIENCE_SECONDS, publishing
from pipelines.engine.console import log
from pipelines.engine.errors import RefusedError
from pipelines.publishing.approval import (
    check_approved,
    refused_directory,
    take_refused,
    write_down,
)
from pipelines.publishing.decisions import Outcome
from pipelines.tracking.entries import CHALLENGER, CHAMPION, registry_tags
from pipelines.tracking.outbox import Outbox, OutboxRun, read_lines
from recsys.data.durable import append_line
from serving.bundle.delta import chain_of
from serving.bundle.manifest import (
    CURRENT,
    BundleManifest,
    OtherVersionError,
    bundle_directory,
    publish,
)

HISTORY = "aliases.jsonl"


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """An alias began to name a version."""

    time: str
    alias: str
    version: str
    previous: str | None
    action: str
    """``release``, ``append``, ``promote``, ``rollback``, ``registry`` (its alias was moved), or
    ``found``: ``current`` was moved by hand, or by a command that was killed before it wrote this
    line."""


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """What a person says when they move an alias."""

    reason: str = ""
    """Written into the decision."""
    instead_of: str | None = None
    """Version that they saw served, empty for none: where another one is by now, nothing is moved.
    None moves it whatever is served."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long to wait for another publisher."""

    def check_served(self, served: str | None) -> None:
        """Refuse where what is served is not what they saw.

        Raises:
            RefusedError: Names both.
        """
        if self.instead_of is not None and self.instead_of != (served or ""):
            raise RefusedError(
                f"{served or 'nothing'} is served by now, not {self.instead_of or 'nothing'}: "
                "somebody else moved it meanwhile. Nothing was changed; look at it, then decide"
            )


def history(bundles: Path) -> list[AliasChange]:
    """Read every change of an alias, oldest first; a line torn by a kill is left out.

    Raises:
        ValueError: A line of it is no change of an alias.
    """
    path = bundles / HISTORY
    if not path.exists():
        return []
    try:
        return [AliasChange(**event) for event in read_lines(path)]
    except TypeError as error:
        raise ValueError(
            f"a line of {path} is no change of an alias ({error}); remove it or restore a copy"
        ) from None


def champions(bundles: Path) -> list[str]:
    """List the champions that a rollback can go back to, the present one last."""
    stack: list[str] = []
    for change in history(bundles):
        if change.alias != CHAMPION:
            continue
        goes_back = change.action in ("rollback", "found")
        stack = _moved(stack, change.version, goes_back=goes_back)
    return stack


def champions_served(bundles: Path) -> list[str]:
    """List the champions as a rollback sees them: the last is served, whoever moved ``current``."""
    stack, served = champions(bundles), served_version(bundles)
    return stack if served is None else _moved(stack, served, goes_back=True)


def _moved(stack: list[str], version: str, *, goes_back: bool) -> list[str]:
    if goes_back and version in stack:
        return stack[: len(stack) - stack[::-1].index(version)]
    return stack if stack[-1:] == [version] else [*stack, version]


def served_version(bundles: Path) -> str | None:
    """Name the version that ``current`` points at, there or not; None without a link."""
    link = bundles / CURRENT
    return link.readlink().name.removeprefix("bundle-") if link.is_symlink() else None


def served_base(bundles: Path) -> BundleManifest | None:
    """Read the manifest of the bundle that what is served stands on; None where nothing is served.

    What is damaged is served by nobody, so a release replaces it, with a note.

    Raises:
        OtherVersionError: It was written by another version of the platform.
    """
    current = bundles / CURRENT
    if not current.exists():
        return None
    try:
        return chain_of(current.resolve())[0].manifest
    except OtherVersionError:
        raise
    except ValueError as error:
        log.print(f"note: {current} cannot be served: {error}", style="yellow", markup=False)
        return None


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

    Where it is the very bundle that served deltas stand on, they go on serving. The caller holds
    the lock.

    Args:
        promoted: Whether it becomes champion though there is another one.
    """
    base = served_base(bundles)
    if base is not None and base.version == version:
        version = served_version(bundles) or version
    elif not promoted and base is not None:
        note_alias(bundles, CHALLENGER, version, "release")
        return CHALLENGER
    note_champion(bundles, version, "release")
    return CHAMPION


def note_champion(bundles: Path, version: str, action: str) -> AliasChange:
    """Point ``current`` at a version and append it to the history; the caller holds the lock."""
    before = served_version(bundles)
    publish(bundles, version)
    if before not in (None, version, *champions(bundles)[-1:]):
        assert before is not None
        note_alias(bundles, CHAMPION, before, "found")
    return note_alias(bundles, CHAMPION, version, action)


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
    bundles: Path,
    version: str | None,
    *,
    config: TrackingConfig,
    outbox: Outbox | None = None,
    force: bool = False,
    by_hand: ByHand | None = None,
) -> AliasChange:
    """Serve a version as champion.

    Args:
        bundles: Folder of the bundles.
        version: None takes the challenger.
        outbox: Where the change is logged for the registry.
        force: Also one that was refused, or whose decision cannot be verified.
        by_hand: What the person says who does it.

    Raises:
        ValueError: If there is no such bundle, or a file of it is missing or altered.
        RefusedError: If it was refused, or a signed decision is missing where a key is set.
    """
    version = version or challenger(bundles)
    if version is None:
        raise ValueError(f"no challenger in {bundles}; name a version: {listed(bundles)}")
    places = (bundle_directory(bundles, version), refused_directory(bundles, version))
    if not any(one.is_dir() for one in places):
        raise ValueError(f"no bundle {version!r} in {bundles}; there are: {listed(bundles)}")
    return make_champion(bundles, version, "promote", config, outbox, force=force, by_hand=by_hand)


def make_challenger(
    bundles: Path,
    version: str,
    *,
    config: TrackingConfig,
    outbox: Outbox | None = None,
    by_hand: ByHand | None = None,
) -> AliasChange:
    """Keep a released version as challenger, which the next promotion takes by default.

    Raises:
        ValueError: There is no such bundle, a file of it is missing or altered, or it is served.
        RefusedError: It was refused, or a signed decision is missing where a key is set.
    """
    by_hand = by_hand or ByHand()
    directory = bundle_directory(bundles, version)
    if not directory.is_dir():
        raise ValueError(f"no bundle {version!r} in {bundles}; there are: {listed(bundles)}")
    with publishing(bundles, by_hand.patience_seconds):
        served = served_version(bundles)
        by_hand.check_served(served)
        if version == served:
            raise ValueError(f"{version} is the champion; name another version as challenger")
        check_approved(bundles, version, action="promote", force=False)
        chain_of(directory)
        change = note_alias(bundles, CHALLENGER, version, "promote")
        words = [f"{version} became challenger by hand."]
        write_down(bundles, version, "kept as challenger", served, words, by_hand.reason)
    if outbox is not None and config.enabled:
        run = outbox.new_file("promote")
        register_chain(run, config.model, bundles, version)
        run.alias(config.model, CHALLENGER, version, action="promote")
        run.end("FINISHED")
    return change


def rollback(
    bundles: Path,
    *,
    config: TrackingConfig,
    outbox: Outbox | None = None,
    by_hand: ByHand | None = None,
) -> AliasChange:
    """Serve the champion before this one again; once more goes back one further.

    Raises:
        ValueError: If there was none before, or its bundle is gone or altered.
    """
    stack = champions_served(bundles)
    if len(stack) < 2:
        now = f"{stack[0]} is the first champion" if stack else "there was no champion yet"
        raise ValueError(f"nothing to go back to in {bundles}: {now}")
    version = stack[-2]
    if not bundle_directory(bundles, version).is_dir():
        raise ValueError(
            f"the champion before this one, {version}, is no longer in {bundles}; promote one "
            f"that is: {listed(bundles)}"
        )
    return make_champion(bundles, version, "rollback", config, outbox, by_hand=by_hand)


def make_champion(
    bundles: Path,
    version: str,
    action: str,
    config: TrackingConfig,
    outbox: Outbox | None,
    *,
    force: bool = False,
    by_hand: ByHand | None = None,
) -> AliasChange:
    """Point ``current`` at a version that may be served, then record it.

    Raises:
        ValueError: It, or what it was appended to, is missing or altered.
        RefusedError: It was refused, or its decision cannot be verified.
    """
    by_hand = by_hand or ByHand()
    with publishing(bundles, by_hand.patience_seconds):
        by_hand.check_served(served_version(bundles))
        overridden = check_approved(bundles, version, action=action, force=force)
        take_refused(bundles, version)
        chain_of(bundle_directory(bundles, version))
        was_challenger, before = challenger(bundles) == version, served_version(bundles)
        change = note_champion(bundles, version, action)
        words = [f"{version} became champion by recsys {action}."]
        if overridden is not None:
            words.append(f"Forced, although {overridden}.")
        outcome: Outcome = "rolled back" if action == "rollback" else "promoted"
        forced = overridden is not None
        write_down(bundles, version, outcome, before, words, by_hand.reason, forced=forced)
    if outbox is not None and config.enabled:
        record_champion(outbox, config.model, bundles, version, action, was_challenger)
    return change


def record_champion(
    outbox: Outbox,
    model: str,
    bundles: Path,
    version: str,
    action: str,
    was_challenger: bool = False,
) -> None:
    """Log a new champion for the registry, with its files and those of what it was appended to."""
    run = outbox.new_file(action)
    register_chain(run, model, bundles, version)
    run.alias(model, CHAMPION, version, action=action)
    if was_challenger:
        run.alias(model, CHALLENGER, None, action=action)
    run.end("FINISHED")


def register_chain(run: OutboxRun, model: str, bundles: Path, version: str) -> None:
    """Log a bundle for the registry, and what it was appended to."""
    for link in chain_of(bundle_directory(bundles, version)):
        verdicts = [verdict.model_dump() for verdict in link.manifest.verdicts]
        one = link.manifest.version
        tags = registry_tags(bundles, one, link.digest, verdicts)
        run.register(model, version=one, digest=link.digest, tags=tags)


def listed(bundles: Path) -> str:
    """Name the versions in a folder of bundles."""
    found = sorted(path.name.removeprefix("bundle-") for path in bundles.glob("bundle-*"))
    return ", ".join(found) or "none"
