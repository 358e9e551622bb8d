"""Read the model registry, in child processes: which bundle an alias names, and its files.

MLflow takes seconds to import and changes the environment, which only the child does; it verifies
every byte before a bundle appears in the folder of bundles (``pipelines.tracking.store.reader``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.config.tracking import TrackingConfig


class RegistryUnreachableError(ValueError):
    """The registry, or the store of its files, gives no answer; later it may."""


@dataclass(frozen=True, kw_only=True)
class RegisteredBundle:
    """What the registry says about a bundle; nothing of it is verified."""

    number: str
    """The registry's number of this version of the model."""
    version: str
    digest: str
    """sha256 of the bundle's manifest."""


@dataclass(frozen=True, kw_only=True)
class LookedUp:
    """The bundle behind an alias, and whether the registry knows the one that is served here."""

    named: RegisteredBundle
    served_is_registered: bool


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A bundle that lies verified in the folder of bundles, what it stands on as well."""

    bundle: RegisteredBundle
    num_files: int
    """Files that were fetched; 0 where everything was there."""
    num_bytes: int
    adapters: Sequence[str] = ()
    """Those that are served where it was made, as domain-<name>/adapter-<version>; they lie beside
    the bundles and are not served here yet."""


def look_up(uri: str, config: TrackingConfig, name: str, served_digest: str | None) -> LookedUp:
    """Ask which bundle an alias names.

    Raises:
        RegistryUnreachableError: The registry gives no answer.
        ValueError: There is no such alias, or no bundle behind it.
    """
    seconds = config.sync_seconds + 2 * config.request_seconds
    request = {"what": "look_up", "name": name, "digest": served_digest}
    found = _in_child(uri, config, request, seconds)
    named = RegisteredBundle(**found["named"])
    return LookedUp(named=named, served_is_registered=found["served_is_registered"])


def fetch(uri: str, config: TrackingConfig, name: str, bundles: Path) -> Fetched:
    """Fetch a bundle, and the one it was appended to, into a folder of bundles.

    Args:
        name: A version, an alias, or the registry's number as ``number:7``.

    Raises:
        RegistryUnreachableError: The registry gives no answer, or stopped giving one; what was
            fetched by then is kept for the next time.
        ValueError: There is no such bundle, or it is not what was registered.
        OSError: The disk is full or cannot be written.
    """
    request = {"what": "fetch", "name": name, "bundles": str(bundles.absolute())}
    found = _in_child(uri, config, request, config.fetch_seconds)
    return Fetched(**{**found, "bundle": RegisteredBundle(**found["bundle"])})


def _in_child(
    uri: str, config: TrackingConfig, request: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    words = json.dumps({"uri": uri, "config": asdict(config), **request})
    try:
        child = subprocess.run(
            [sys.executable, "-m", "pipelines.tracking.store.reader", words],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegistryUnreachableError(
            f"the registry {uri} was not done in {seconds:g} s; raise tracking.fetch_seconds "
            "(of a fetch, which goes on where it was) or tracking.sync_seconds"
        ) from None
    try:
        reply = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise RegistryUnreachableError(f"reading the registry {uri} failed: {last}") from None
    if "unreachable" in reply:
        raise RegistryUnreachableError(reply["unreachable"])
    if "disk" in reply:
        raise OSError(reply["disk"])
    if "refused" in reply:
        raise ValueError(reply["refused"])
    found: dict[str, Any] = reply["found"]
    return found
