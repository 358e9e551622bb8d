"""Serve the bundle that the registry's alias names: fetch it, verify it, point ``current`` at it.

Precedence if the alias and the served bundle differ:

- a change made here that the registry has not got yet is newer than the alias, and stays;
- an alias that was not moved since it was last set or obeyed here says nothing new: the bundle
  served here was changed since, and stays;
- otherwise the alias was moved in the registry, and is obeyed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pipelines.config.operation import TrackingConfig
from pipelines.engine.decisions import CHAMPION
from pipelines.engine.formats import size
from pipelines.engine.workspace import publishing
from pipelines.publishing.promotion import check_approved, note_champion, served_version
from pipelines.tracking import copies
from pipelines.tracking.outbox import Outbox, check_pointer, store_uri
from pipelines.tracking.store import RegisteredBundle, look_up
from serving.bundle.manifest import CURRENT, read_manifest


class Pulled(NamedTuple):
    """Result of following the registry."""

    version: str | None
    moved: bool
    words: str


def fetch(named: RegisteredBundle, bundles: Path) -> copies.FetchedBundle:
    """Copy a registered bundle into a folder of bundles, with what it was appended to.

    Raises:
        UnreachableError: The place of its files does not answer.
        ValueError: It is not the registered one, or its pointer is not the operators'.
        OSError: The disk is full or cannot be written.
    """
    check_pointer(named.pointer, named.version, named.digest)
    try:
        return copies.fetch(named.bundles, named.version, named.digest, bundles)
    except copies.MissingError as error:
        raise ValueError(
            f"{error}. The files of bundle {named.version} are where it was made, or were removed: "
            "name a folder or URL that both machines reach as tracking.bundles there, then `recsys "
            f"release promote {named.version}` copies them"
        ) from error


def pull(bundles: Path, *, config: TrackingConfig, outbox: Outbox) -> Pulled:
    """Serve the bundle that the registry's alias champion names.

    Raises:
        UnreachableError: The registry gives no answer; the served bundle stays.
        ValueError: The alias names nothing that can be served; the served bundle stays.
        RefusedError: It was refused here.
    """
    uri, before = store_uri(config, outbox), served_version(bundles)
    if (waiting := outbox.waiting_alias(config.model, CHAMPION)) is not None:
        words = (
            f"{waiting['version']} was made champion here ({waiting['action']}) and the registry "
            "has not got that yet; it is newer than the alias there and stays"
        )
        return Pulled(before, False, words)
    try:
        digest = read_manifest((bundles / CURRENT).resolve())[1]
    except (ValueError, OSError):
        digest = None
    named = look_up(uri, config, CHAMPION)
    if (named.version, named.digest) == (before, digest):
        outbox.note_alias(uri, config.model, CHAMPION, named.number)
        return Pulled(before, False, "as the registry says")
    if digest and outbox.aliases().get(f"{uri} {config.model} {CHAMPION}") == named.number:
        promote = f"recsys release promote {bundles}"
        words = (
            f"the alias still names {named.version}, as when it was last set or obeyed here; "
            f"{before} became champion here since. `{promote} {before}` enters it into the "
            f"registry, `{promote} {named.version}` goes back"
        )
        return Pulled(before, False, words)
    fetched = fetch(named, bundles)
    with publishing(bundles):
        if (served := served_version(bundles)) != before:
            words = f"{served} was made champion here while {named.version} was fetched"
            return Pulled(served, False, words)
        check_approved(bundles, named.version, action="registry")
        reasons = ["The registry's alias names it.", f"Fetched from {named.bundles}."]
        note_champion(bundles, named.version, "registry", words=reasons)
    outbox.note_alias(uri, config.model, CHAMPION, named.number)
    copied = f"{fetched.num_files} files fetched and verified ({size(fetched.num_bytes)})"
    copied = copied if fetched.num_files else "all files were here"
    return Pulled(named.version, True, f"moved in the registry, {copied}")
