"""Entry of a bundle in the registry, with a pointer that is signed if a key is set."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.config.operation import TrackingConfig
from pipelines.engine.signing import KEY, check_signature, signed, signing_key
from pipelines.tracking.decisions import AliasChange
from pipelines.tracking.outbox import Outbox, OutboxRun
from serving.bundle.manifest import bundle_directory, read_manifest

POINTER = "pointer"
"""Tag with the bundle's version and digest, signed if a key is set."""
BUNDLES = "bundles"
"""Tag with the folder of bundles, or its URL, that has the files."""


def register(run: OutboxRun, model: str, bundles: Path, version: str, digest: str) -> None:
    """Enter a bundle into the registry: version, digest and tags."""
    pointer = json.dumps(signed({"bundle": version, "digest": digest}, signing_key()))
    tags = {BUNDLES: str(bundles.absolute()), POINTER: pointer}
    run.append("register", model=model, version=version, digest=digest, tags=tags)


def enter_change(
    outbox: Outbox, config: TrackingConfig, bundles: Path, change: AliasChange
) -> None:
    """Log a moved alias for the registry, with its bundle."""
    if not config.enabled:
        return
    run, version = outbox.new_file(change.action), change.version
    register(
        run, config.model, bundles, version, read_manifest(bundle_directory(bundles, version))[1]
    )
    run.alias(config.model, change.alias, version, action=change.action)
    run.end("FINISHED")


def check_pointer(pointer: str, version: str, digest: str) -> None:
    """Verify the pointer to a bundle.

    Raises:
        ValueError: It is of another bundle, altered, or not signed though a key is set.
    """
    advice = f"`recsys release promote {version}` where it was made registers it again"
    key, what = signing_key(), f"the registry's pointer to bundle {version}"
    found = json.loads(pointer) if pointer else {}
    if check_signature(found, key, what) != "signed" and key is not None:
        raise ValueError(f"{what} is not signed, and {KEY} is set; {advice}")
    if found and (found.get("bundle"), found.get("digest")) != (version, digest):
        raise ValueError(f"{what} is of another bundle; {advice}")
