"""Whether a version may become champion by hand: what was decided on it, and by whom signed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipelines.engine.errors import RefusedError
from pipelines.engine.signing import KEY, TamperedError, signing_key
from pipelines.publishing.decisions import (
    GOOD,
    Decision,
    Outcome,
    Written,
    decision_on,
    write_decision,
)
from serving.bundle.manifest import bundle_directory, read_manifest

REFUSED_BUNDLES = "refused"
"""Holds the bundle that was refused last, for people to look at and to force."""


def refused_directory(bundles: Path, version: str) -> Path:
    """Name where a refused bundle lies."""
    return bundle_directory(bundles / REFUSED_BUNDLES, version)


def keep_refused(bundles: Path, written: Path) -> Path:
    """Move a refused bundle to where people can look at it; the one before it is removed."""
    folder = bundles / REFUSED_BUNDLES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return written.rename(folder / written.name)


def check_approved(bundles: Path, version: str, *, action: str, force: bool) -> str | None:
    """Find out whether a version may be served; the caller holds the lock.

    Without a key whatever was not refused may be; with one it needs a signed decision on this very
    bundle. A champion from before the key was set may be gone back to.

    Returns:
        What was overridden by ``force``; None where nothing was.

    Raises:
        RefusedError: It may not; says why, and what to do.
    """
    why = _objection(bundles, version, action=action)
    if why is None:
        return None
    if force:
        return why
    raise RefusedError(
        f"{version} is not served: {why}. See recsys release explain {version}; to serve it all "
        f"the same, and have that written down: recsys release promote {version} --force"
    )


def _objection(bundles: Path, version: str, *, action: str) -> str | None:
    key = signing_key()
    try:
        found = decision_on(bundles, version, key)
    except TamperedError as error:
        return str(error)
    base = version.partition("+")[0]
    refused = refused_directory(bundles, version).is_dir()
    if found is None:
        if refused:
            return "it was refused"
        if key is None or action == "rollback":
            return None
        return f"there is no signed decision on it, and {KEY} is set"
    if (wrong := _unlike(bundles, base, found)) is not None:
        return wrong
    if found.decision.outcome not in GOOD:
        return "it was refused: " + "; ".join(one["name"] for one in found.decision.failed)
    if key is not None and found.state != "signed" and action != "rollback":
        return f"the decision on it, {found.path.name}, is not signed, and {KEY} is set"
    return None


def _unlike(bundles: Path, version: str, found: Written) -> str | None:
    """Say how the bundle differs from the one that was decided on; None where it does not."""
    places = (bundle_directory(bundles, version), refused_directory(bundles, version))
    directory = next((one for one in places if one.is_dir()), None)
    if directory is None or found.decision.challenger_digest is None:
        return None
    digest = read_manifest(directory)[1]
    if digest == found.decision.challenger_digest:
        return None
    return (
        f"{directory} has digest {digest[:12]}, the decision {found.path.name} is on "
        f"{found.decision.challenger_digest[:12]}: the bundle was altered after the decision"
    )


def take_refused(bundles: Path, version: str) -> None:
    """Move a refused bundle that is forced to the others."""
    source, final = refused_directory(bundles, version), bundle_directory(bundles, version)
    if source.is_dir() and not final.exists():
        source.rename(final)


def write_down(
    bundles: Path,
    version: str,
    outcome: Outcome,
    champion: str | None,
    words: Sequence[str],
    reason: str,
    *,
    forced: bool = False,
) -> Path:
    """Write what was done by hand into the decisions.

    Args:
        reason: In the words of the person who did it; empty where they gave none.
    """
    base = version.partition("+")[0]
    decision = Decision(
        outcome=outcome,
        challenger=version,
        champion=champion,
        challenger_digest=read_manifest(bundle_directory(bundles, base))[1],
        words=[*words, *([f"Reason given: {reason}"] if reason else [])],
        forced=forced,
    )
    return write_decision(bundles, decision, signing_key())
