"""Entry of a bundle in the registry, with a pointer that is signed if a key is set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelines.config.operation import TrackingConfig
from pipelines.engine.signing import KEY, TamperedError, check_signature, signed, signing_key
from pipelines.tracking.decisions import CHALLENGER, AliasChange, decision_on
from pipelines.tracking.outbox import Outbox
from serving.bundle.manifest import bundle_directory
from serving.bundle.published import read_chain

POINTER = "pointer"
"""Tag with the bundle's version and digest, and the digest of the decision on it."""
BUNDLES = "bundles"
"""Tag with the folder of bundles, or its URL, that has the files."""


def decision_file(digest: str) -> str:
    """Return the file of a decision in a folder of copies."""
    return f"decisions/{digest}.json"


def registry_entry(
    bundles: Path, version: str, digest: str, verdicts: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Build the registry's entry of a bundle: its tags, and the decision on it."""
    try:
        found = decision_on(bundles, version, None)
    except TamperedError:
        found = None
    decided, line = (None, None) if found is None else (found.digest, found.line)
    pointer = {"bundle": version, "digest": digest, "decision": decided}
    tags = {
        BUNDLES: str(bundles.absolute()),
        POINTER: json.dumps(signed(pointer, signing_key()), sort_keys=True),
        **{f"verdict.{one['name']}": str(one["value"]) for one in verdicts},
    }
    return {"version": version, "digest": digest, "tags": tags, "decision": line}


def enter_change(
    outbox: Outbox, config: TrackingConfig, bundles: Path, change: AliasChange
) -> None:
    """Log a moved alias for the registry, with its bundle and those it was appended to."""
    if not config.enabled:
        return
    run = outbox.new_file(change.action)
    for link in read_chain(bundle_directory(bundles, change.version)):
        verdicts = [verdict.model_dump() for verdict in link.manifest.verdicts]
        run.register(
            config.model, **registry_entry(bundles, link.manifest.version, link.digest, verdicts)
        )
    run.alias(config.model, change.alias, change.version, action=change.action)
    if change.was_challenger:
        run.alias(config.model, CHALLENGER, None, action=change.action)
    run.end("FINISHED")


def read_pointer(pointer: str, version: str, digest: str) -> str | None:
    """Verify a pointer; return the digest of the decision on the bundle, if there is one.

    Raises:
        ValueError: It is of another bundle, altered, or not signed though a key is set.
    """
    advice = f"`recsys release promote {version}` where it was made registers it again"
    key, what = signing_key(), f"the registry's pointer to bundle {version}"
    found = json.loads(pointer) if pointer else {}
    if check_signature(found, key, what) != "signed" and key is not None:
        raise ValueError(f"{what} is not signed, and {KEY} is set; {advice}")
    if not found:
        return None
    if (found.get("bundle"), found.get("digest")) != (version, digest):
        raise ValueError(f"{what} is of another bundle; {advice}")
    decision = found.get("decision")
    if decision is not None and not isinstance(decision, str):
        raise ValueError(f"{what} is of another version of recsys; {advice}")
    return decision
