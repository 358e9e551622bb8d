"""Champion and challenger: the link that serving follows, moved with a decision in the log.

A release that passed its checks becomes champion at once, unless ``release.promote`` is false;
then it is the challenger until ``recsys release promote`` makes it champion. The first bundle is
always champion. Who moves an alias enters the change into the registry (`tracking.outbox`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipelines.engine.console import log
from pipelines.engine.decisions import (
    ACTIONS,
    CHALLENGER,
    CHAMPION,
    KEY,
    Decision,
    Outcome,
    TamperedError,
    append_decision,
    decision_on,
    read_challenger,
    read_champions,
    signing_key,
)
from pipelines.engine.errors import RefusedError
from pipelines.engine.workspace import publishing
from serving.bundle.manifest import (
    CURRENT,
    BundleManifest,
    OtherVersionError,
    bundle_directory,
    publish,
    read_chain,
    read_manifest,
)

REFUSED_BUNDLES = "refused"
"""Folder of the bundle that was refused last, to look at and to force."""


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


def note_comparison(champion: str, num_queries: int, decision: str) -> None:
    """Print what comparing a new bundle with the champion showed."""
    log.print(f"champion {champion} on the same {num_queries} queries: {decision}", style="dim")


def note_release(bundles: Path, version: str, *, promoted: bool, **about: Any) -> str:
    """Record a written bundle and publish it, or keep it as challenger; return its alias.

    The first release is champion even if not ``promoted``. If served deltas were appended to this
    very bundle, they stay served. The caller holds the lock.
    """
    base = served_base(bundles)
    is_served = base is not None and base.version == version
    if not (promoted or base is None or is_served):
        _decide(bundles, version, "kept as challenger", **about)
        return CHALLENGER
    serves = (served_version(bundles) if is_served else None) or version
    _decide(bundles, version, "released", serves=serves, **about)
    publish(bundles, serves)
    return CHAMPION


def refuse(bundles: Path, version: str, **about: Any) -> None:
    """Append a refusal to the log and raise it.

    Raises:
        RefusedError: Always; names each failed check with its value, bound and reason.
    """
    decision = Decision(outcome="refused", challenger=version, **about)
    append_decision(bundles, decision, signing_key())
    served = served_version(bundles)
    kept = f"bundle-{served} goes on serving" if served else "nothing is served"
    lines = "".join(f"  {line}\n" for line in decision.words[1:])
    raise RefusedError(
        f"the new bundle is refused and was not published; {kept}.\n{lines}All verdicts: recsys "
        f"release explain {bundles} {version}. The bounds are in [release] and [release.gate]."
    )


def note_champion(bundles: Path, version: str, action: str, **about: Any) -> Decision:
    """Point ``current`` at a version and record it; the caller holds the lock."""
    before = served_version(bundles)
    publish(bundles, version)
    return _decide(bundles, version, ACTIONS[action], champion=before, serves=version, **about)


def _decide(bundles: Path, version: str, outcome: Outcome, **about: Any) -> Decision:
    """Append a decision on a version."""
    if "challenger_digest" not in about:
        base = bundle_directory(bundles, version.partition("+")[0])
        about["challenger_digest"] = read_manifest(base)[1]
    about = {"champion": served_version(bundles), **about}
    decision = Decision(outcome=outcome, challenger=version, **about)
    return append_decision(bundles, decision, signing_key())


def promote(bundles: Path, version: str | None, *, force: bool = False) -> Decision:
    """Serve a version as champion.

    Args:
        version: None takes the challenger.
        force: As of `make_champion`.

    Raises:
        ValueError: If there is no such bundle, or a file of it is missing or altered.
        RefusedError: If it was refused, or a signed decision is missing though a key is set.
    """
    version = version or read_challenger(bundles)
    if version is None:
        raise ValueError(f"no challenger in {bundles}; name a version: {listed(bundles)}")
    if find_bundle(bundles, version) is None:
        raise ValueError(f"no bundle {version!r} in {bundles}; there are: {listed(bundles)}")
    return make_champion(bundles, version, "promote", force=force)


def rollback(bundles: Path) -> Decision:
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
    return make_champion(bundles, version, "rollback")


def make_champion(bundles: Path, version: str, action: str, *, force: bool = False) -> Decision:
    """Point ``current`` at a version that may be served, then record it.

    Args:
        force: Serve it though it was refused or has no decision.

    Raises:
        ValueError: It, or what it was appended to, is missing or altered.
        RefusedError: It was refused, or its decision cannot be verified.
    """
    with publishing(bundles):
        overridden = check_approved(bundles, version, action=action, force=force)
        refused, final = refused_directory(bundles, version), bundle_directory(bundles, version)
        if refused.is_dir() and not final.exists():
            refused.rename(final)
        read_chain(final)
        words = [f"{version} became champion by recsys {action}."]
        if overridden is not None:
            words.append(f"Forced, although {overridden}.")
        return note_champion(bundles, version, action, words=words, forced=overridden is not None)


def listed(bundles: Path) -> str:
    """List the versions in a folder of bundles."""
    found = sorted(path.name.removeprefix("bundle-") for path in bundles.glob("bundle-*"))
    return ", ".join(found) or "none"


def refused_directory(bundles: Path, version: str) -> Path:
    """Return the folder of a refused bundle."""
    return bundle_directory(bundles / REFUSED_BUNDLES, version)


def find_bundle(bundles: Path, version: str) -> Path | None:
    """Find the folder of a bundle among the released and the refused ones."""
    places = (bundle_directory(bundles, version), refused_directory(bundles, version))
    return next((one for one in places if one.is_dir()), None)


def keep_refused(bundles: Path, written: Path) -> Path:
    """Move a refused bundle to where people can look at it; the one before it is removed."""
    folder = bundles / REFUSED_BUNDLES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return written.rename(folder / written.name)


def check_approved(bundles: Path, version: str, *, action: str, force: bool = False) -> str | None:
    """Check that a version may be served; the caller holds the lock.

    Without a key any version that was not refused may be; with one it needs a signed decision on
    this very bundle. A champion from before the key was set may be gone back to, and a bundle of
    the registry has a signed pointer.

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
    needs_signature = key is not None and action == "promote"
    try:
        found = decision_on(bundles, version, key)
    except TamperedError as error:
        return str(error)
    if found is None:
        if refused_directory(bundles, version).is_dir():
            return "it was refused"
        no_decision = f"there is no signed decision on it, and {KEY} is set"
        return no_decision if needs_signature else None
    decided, directory = found.decision, find_bundle(bundles, version.partition("+")[0])
    if directory is not None and decided.challenger_digest is not None:
        digest = read_manifest(directory)[1]
        if digest != decided.challenger_digest:
            return (
                f"{directory} has digest {digest[:12]}, the decision {found.name} is on "
                f"{decided.challenger_digest[:12]}: the bundle was altered after the decision"
            )
    if decided.outcome == "refused":
        return "it was refused: " + "; ".join(one["name"] for one in decided.failed)
    if needs_signature and found.state != "signed":
        return f"the decision on it, {found.name}, is not signed, and {KEY} is set"
    return None
