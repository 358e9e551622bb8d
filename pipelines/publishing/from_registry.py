"""Serve what the registry's alias names: fetch the bundle, verify it, point ``current`` at it.

Precedence if the alias and the served bundle differ:

- a change made here that the registry has not got yet is newer than the alias, and stays;
- an alias that was not moved since it was last set or obeyed here says nothing new: the bundle
  served here was changed since, and stays;
- otherwise the alias was moved in the registry, and is obeyed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.config.operation import TrackingConfig
from pipelines.engine.formats import size
from pipelines.engine.signing import TamperedError, signing_key
from pipelines.engine.workspace import publishing
from pipelines.publishing.promotion import check_approved, note_champion, served_version
from pipelines.tracking.decisions import (
    CHALLENGER,
    CHAMPION,
    Decision,
    append_decision,
    read_decisions,
    read_line,
)
from pipelines.tracking.entries import decision_file, read_pointer
from pipelines.tracking.outbox import Outbox
from pipelines.tracking.tracking import RegisteredBundle, look_up, store_uri
from serving.bundle import copies
from serving.bundle.manifest import CURRENT, read_manifest

MAX_DECISION_BYTES = 1 << 20
FOLLOWED = "The registry's alias names it."


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Result of following the registry."""

    version: str
    moved: bool
    words: str


def why_local_stays(bundles: Path, named: RegisteredBundle, last: str | None) -> str | None:
    """Explain why the served bundle is newer than the registry's alias; None if it is not."""
    served, promote = served_version(bundles), f"recsys release promote {bundles}"
    if served is None or not (bundles / CURRENT).exists():
        return None
    if last == named.number:
        return (
            f"the alias still names {named.version}, as when it was last set or obeyed here; "
            f"{served} became champion here since. `{promote} {served}` enters it "
            f"into the registry, `{promote} {named.version}` goes back"
        )
    if last is None and not named.served_is_registered:
        return (
            f"{served} was made champion here and the registry never got it; the alias names "
            f"{named.version}. `{promote} {served}` enters it into the registry, "
            f"`{promote} {named.version}` takes the registry's"
        )
    return None


def fetch(named: RegisteredBundle, bundles: Path) -> copies.FetchedBundle:
    """Copy a registered bundle into a folder of bundles, with what it was appended to.

    Raises:
        UnreachableError: The place of its files does not answer.
        ValueError: It, or the decision on it, is not the registered or signed one.
        OSError: The disk is full or cannot be written.
    """
    decision = read_pointer(named.pointer, named.version, named.digest)
    try:
        found = copies.fetch(named.bundles, named.version, named.digest, bundles)
        if decision is not None:
            name = decision_file(decision)
            content = copies.read_verified(named.bundles, name, decision, MAX_DECISION_BYTES)
            keep_decision(bundles, named, content.decode())
    except copies.MissingError as error:
        raise ValueError(
            f"{error}. The files of bundle {named.version} are where it was made, or were removed: "
            "name a folder or URL that both machines reach as tracking.bundles there, then `recsys "
            f"release promote {named.version}` copies them"
        ) from error
    return found


def keep_decision(bundles: Path, named: RegisteredBundle, line: str) -> None:
    """Append the decision that came with a fetched bundle, unless the log has it.

    Raises:
        TamperedError: It is not the signed one.
    """
    key = signing_key()
    one = read_line(line, key, f"the decision on {named.version}")
    if one.fault:
        raise TamperedError(one.fault)
    with publishing(bundles):
        known = read_decisions(bundles, key)[0]
        if any(line in (have.line, have.decision.original) for have in known):
            return
        decision = Decision(
            outcome="fetched",
            challenger=named.version,
            champion=served_version(bundles),
            challenger_digest=one.decision.challenger_digest,
            words=[f"Fetched from {named.bundles}, {one.decision.outcome} there."],
            original=line,
        )
        append_decision(bundles, decision, key)


def follow_registry(bundles: Path, *, config: TrackingConfig, outbox: Outbox) -> Followed:
    """Make the bundle champion that the registry's alias names.

    Raises:
        UnreachableError: The registry gives no answer; the served bundle stays.
        ValueError: The alias names nothing that can be served; the served bundle stays.
        RefusedError: It was refused here, or a key is set and no signed decision on it is here.
    """
    uri, before = store_uri(config, outbox), served_version(bundles)
    waiting = outbox.waiting_alias(config.model, CHAMPION)
    if waiting is not None:
        words = (
            f"{waiting['version']} was made champion here ({waiting['action']}, "
            f"{waiting['when']}) and the registry has not got that yet; it is newer than the "
            "alias there and stays"
        )
        return Followed(version=before or str(waiting["version"]), moved=False, words=words)
    try:
        digest = read_manifest((bundles / CURRENT).resolve())[1]
    except (ValueError, OSError):
        digest = None
    named = look_up(uri, config, CHAMPION, digest)
    if named.digest == digest and named.version == before:
        outbox.note_alias(uri, config.model, CHAMPION, named.number)
        return Followed(version=named.version, moved=False, words="as the registry says")
    local = why_local_stays(bundles, named, outbox.last_alias(uri, config.model, CHAMPION))
    if local is not None:
        return Followed(version=str(before), moved=False, words=local)
    fetched = fetch(named, bundles)
    with publishing(bundles):
        if (served := served_version(bundles)) != before:
            words = f"{served} was made champion here while {named.version} was fetched"
            return Followed(version=str(served), moved=False, words=words)
        check_approved(bundles, named.version, action="registry", force=False)
        change = note_champion(bundles, named.version, "registry", words=[FOLLOWED])
    outbox.note_alias(uri, config.model, CHAMPION, named.number)
    if change.was_challenger and config.enabled:
        run = outbox.new_file("registry")
        run.alias(config.model, CHALLENGER, None, action="registry")
        run.end("FINISHED")
    words = f"moved in the registry, {fetched_words(fetched)}"
    return Followed(version=named.version, moved=True, words=words)


def fetched_words(fetched: copies.FetchedBundle) -> str:
    """Format the amount that was fetched."""
    if not fetched.num_files:
        return "all files were here"
    return f"{fetched.num_files} files fetched and verified ({size(fetched.num_bytes)})"


def fetch_bundle(
    name: str, bundles: Path, *, config: TrackingConfig, outbox: Outbox
) -> tuple[copies.FetchedBundle, bool]:
    """Fetch a bundle into a folder, and serve it there if nothing else is.

    Returns:
        What was fetched, and whether it is served now.

    Raises:
        RefusedError: A key is set, and no signed decision on it came along.
    """
    uri = store_uri(config, outbox)
    named = look_up(uri, config, name)
    fetched = fetch(named, bundles)
    with publishing(bundles):
        check_approved(bundles, named.version, action="registry", force=False)
        if (bundles / CURRENT).exists():
            return fetched, False
        note_champion(bundles, named.version, "registry", words=[FOLLOWED])
    if name == CHAMPION:
        outbox.note_alias(uri, config.model, CHAMPION, named.number)
    return fetched, True
