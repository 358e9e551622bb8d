"""Champion and challenger: the link that serving follows, moved with a decision in the log.

A release that passed its checks becomes champion at once, unless ``release.promote`` is false;
then it is the challenger until ``recsys release promote`` makes it champion. The first bundle is
always champion. The registry gets the change through the outbox, when it can be reached.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.config.operation import TrackingConfig
from pipelines.engine.console import log
from pipelines.engine.errors import RefusedError
from pipelines.engine.signing import KEY, TamperedError, signing_key
from pipelines.engine.workspace import PATIENCE_SECONDS, publishing
from pipelines.tracking.decisions import (
    ACTIONS,
    CHALLENGER,
    CHAMPION,
    AliasChange,
    Decision,
    Outcome,
    Written,
    alias_changes,
    append_decision,
    decision_on,
    read_challenger,
    read_champions,
)
from pipelines.tracking.entries import registry_entry
from pipelines.tracking.outbox import Outbox, OutboxRun
from serving.bundle.manifest import (
    CURRENT,
    BundleManifest,
    OtherVersionError,
    bundle_directory,
    publish,
    read_manifest,
)
from serving.bundle.published import read_chain

REFUSED_BUNDLES = "refused"
"""Folder of the bundle that was refused last, to look at and to force."""


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """Options of a person who moves an alias."""

    reason: str = ""
    """Written into the decision."""
    instead_of: str | None = None
    """Abort unless this version is still served ('' is none); None does not check."""
    patience_seconds: float = PATIENCE_SECONDS

    def check_served(self, served: str | None) -> None:
        """Refuse if another version is served than the person saw.

        Raises:
            RefusedError: Names both.
        """
        if self.instead_of is not None and self.instead_of != (served or ""):
            raise RefusedError(
                f"{served or 'nothing'} is served by now, not {self.instead_of or 'nothing'}: "
                "somebody else moved it meanwhile. Nothing was changed; look at it, then decide"
            )

    def words(self) -> list[str]:
        """Return the reason as a line of the decision."""
        return [f"Reason given: {self.reason}"] if self.reason else []


def served_version(bundles: Path) -> str | None:
    """Return the version that ``current`` names, present or not; None without a link."""
    link = bundles / CURRENT
    return link.readlink().name.removeprefix("bundle-") if link.is_symlink() else None


def champions(bundles: Path) -> list[str]:
    """List the champions that a rollback can go back to, the served one last."""
    return read_champions(bundles, served_version(bundles))


def served_base(bundles: Path) -> BundleManifest | None:
    """Read the manifest of the release that is served, below its deltas; None without one.

    A damaged bundle cannot be served, so a release replaces it, with a note.

    Raises:
        OtherVersionError: It was written by another version of the platform.
    """
    current = bundles / CURRENT
    if not current.exists():
        return None
    try:
        return read_chain(current.resolve())[0].manifest
    except OtherVersionError:
        raise
    except ValueError as error:
        log.print(f"note: {current} cannot be served: {error}", style="yellow", markup=False)
        return None


def alias_of_release(bundles: Path, version: str, *, promoted: bool) -> str:
    """Choose the alias of a new release: the first one is champion even if not ``promoted``."""
    base = served_base(bundles)
    return CHAMPION if promoted or base is None or base.version == version else CHALLENGER


def note_release(bundles: Path, version: str, *, promoted: bool, **about: Any) -> str:
    """Record a written bundle and publish it, or keep it as challenger; return its alias.

    If served deltas were appended to this very bundle, they stay served. The caller holds the lock.
    """
    alias = alias_of_release(bundles, version, promoted=promoted)
    if alias == CHALLENGER:
        _decide(bundles, version, "kept as challenger", **about)
        return alias
    base = served_base(bundles)
    serves = version
    if base is not None and base.version == version:
        serves = served_version(bundles) or version
    _decide(bundles, version, "released", serves=serves, **about)
    publish(bundles, serves)
    return alias


def note_champion(bundles: Path, version: str, action: str, **about: Any) -> AliasChange:
    """Point ``current`` at a version and record it; the caller holds the lock."""
    before = served_version(bundles)
    publish(bundles, version)
    return _decide(bundles, version, ACTIONS[action], champion=before, serves=version, **about)


def _decide(bundles: Path, version: str, outcome: Outcome, **about: Any) -> AliasChange:
    """Append a decision on a version, and return how it moved an alias."""
    base = bundle_directory(bundles, version.partition("+")[0])
    if "challenger_digest" not in about:
        about["challenger_digest"] = read_manifest(base)[1]
    about = {"champion": served_version(bundles), **about}
    decision = Decision(outcome=outcome, challenger=version, **about)
    decision = append_decision(bundles, decision, signing_key())
    return next(iter(alias_changes([decision])))


def check_there(bundles: Path, version: str) -> None:
    """Refuse a version whose bundle is neither among the released nor the refused ones.

    Raises:
        ValueError: Lists the versions.
    """
    places = (bundle_directory(bundles, version), refused_directory(bundles, version))
    if not any(one.is_dir() for one in places):
        raise ValueError(f"no bundle {version!r} in {bundles}; there are: {listed(bundles)}")


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
        version: None takes the challenger.

    Raises:
        ValueError: If there is no such bundle, or a file of it is missing or altered.
        RefusedError: If it was refused, or a signed decision is missing though a key is set.
    """
    version = version or read_challenger(bundles)
    if version is None:
        raise ValueError(f"no challenger in {bundles}; name a version: {listed(bundles)}")
    check_there(bundles, version)
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
        RefusedError: It was refused, or a signed decision is missing though a key is set.
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
        read_chain(directory)
        words = [f"{version} became challenger by hand.", *by_hand.words()]
        before = read_challenger(bundles)
        change = _decide(bundles, version, "kept as challenger", words=words)
    if outbox is not None and config.enabled:
        run = outbox.new_file("promote")
        register_chain(run, config.model, bundles, version)
        run.alias(config.model, CHALLENGER, version, action="promote")
        run.end("FINISHED")
    return AliasChange(**{**vars(change), "previous": before})


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
        read_chain(bundle_directory(bundles, version))
        was_challenger = read_challenger(bundles) == version
        words = [f"{version} became champion by recsys {action}."]
        if overridden is not None:
            words.append(f"Forced, although {overridden}.")
        words += by_hand.words()
        change = note_champion(bundles, version, action, words=words, forced=overridden is not None)
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
    """Log a new champion for the registry, with its files and those it was appended to."""
    run = outbox.new_file(action)
    register_chain(run, model, bundles, version)
    run.alias(model, CHAMPION, version, action=action)
    if was_challenger:
        run.alias(model, CHALLENGER, None, action=action)
    run.end("FINISHED")


def register_chain(run: OutboxRun, model: str, bundles: Path, version: str) -> None:
    """Log a bundle for the registry, and what it was appended to."""
    for link in read_chain(bundle_directory(bundles, version)):
        verdicts = [verdict.model_dump() for verdict in link.manifest.verdicts]
        entry = registry_entry(bundles, link.manifest.version, link.digest, verdicts)
        run.register(model, **entry)


def listed(bundles: Path) -> str:
    """List the versions in a folder of bundles."""
    found = sorted(path.name.removeprefix("bundle-") for path in bundles.glob("bundle-*"))
    return ", ".join(found) or "none"


def refused_directory(bundles: Path, version: str) -> Path:
    """Return the folder of a refused bundle."""
    return bundle_directory(bundles / REFUSED_BUNDLES, version)


def keep_refused(bundles: Path, written: Path) -> Path:
    """Move a refused bundle to where people can look at it; the one before it is removed."""
    folder = bundles / REFUSED_BUNDLES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return written.rename(folder / written.name)


def take_refused(bundles: Path, version: str) -> None:
    """Move a refused bundle that is forced to the others."""
    source, final = refused_directory(bundles, version), bundle_directory(bundles, version)
    if source.is_dir() and not final.exists():
        source.rename(final)


def check_approved(bundles: Path, version: str, *, action: str, force: bool) -> str | None:
    """Check that a version may be served; the caller holds the lock.

    Without a key any version that was not refused may be; with one it needs a signed decision on
    this very bundle. A champion from before the key was set may be gone back to.

    Returns:
        The objection that ``force`` overrode; None without one.

    Raises:
        RefusedError: It may not; says why, and what to do.
    """
    why = _objection(bundles, version, action=action)
    if why is None or force:
        return why
    raise RefusedError(
        f"{version} is not served: {why}. See recsys release explain {bundles} {version}; to serve "
        f"it anyway, which is recorded: recsys release promote {bundles} {version} --force"
    )


def _objection(bundles: Path, version: str, *, action: str) -> str | None:
    key = signing_key()
    try:
        found = decision_on(bundles, version, key)
    except TamperedError as error:
        return str(error)
    if found is None:
        if refused_directory(bundles, version).is_dir():
            return "it was refused"
        if key is None or action == "rollback":
            return None
        return f"there is no signed decision on it, and {KEY} is set"
    if (wrong := _unlike(bundles, version.partition("+")[0], found)) is not None:
        return wrong
    if found.decision.outcome == "refused":
        return "it was refused: " + "; ".join(one["name"] for one in found.decision.failed)
    if key is not None and found.state != "signed" and action != "rollback":
        return f"the decision on it, {found.name}, is not signed, and {KEY} is set"
    return None


def _unlike(bundles: Path, version: str, found: Written) -> str | None:
    """Explain how the bundle differs from the one that was decided on; None if it does not."""
    places = (bundle_directory(bundles, version), refused_directory(bundles, version))
    directory = next((one for one in places if one.is_dir()), None)
    if directory is None or found.decision.challenger_digest is None:
        return None
    digest = read_manifest(directory)[1]
    if digest == found.decision.challenger_digest:
        return None
    return (
        f"{directory} has digest {digest[:12]}, the decision {found.name} is on "
        f"{found.decision.challenger_digest[:12]}: the bundle was altered after the decision"
    )
