"""Read an MLflow registry and fetch bundles from its store, in a process of its own.

``pipelines.tracking.registry`` starts it as ``python -m pipelines.tracking.store.reader REQUEST``;
the last line of its output is the reply as JSON: ``found``, ``refused`` (with the reason),
``unreachable`` or ``disk``. MLflow's own loading of models is never used.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.config.tracking import TrackingConfig
from pipelines.tracking.registry import RegisteredBundle
from pipelines.tracking.store.companions import Companions
from pipelines.tracking.store.connection import (
    DIGEST_TAG,
    GONE,
    VERSION_TAG,
    answers,
    local_path,
    mlflow_client,
    passing,
    registered,
)
from pipelines.tracking.store.downloads import DiskError, Download
from pipelines.tracking.tracking import is_server
from recsys.data.durable import locked
from serving.bundle.manifest import VERSION_PATTERN, bundle_directory

LOCK = ".fetch.lock"
NUMBER = "number:"
NO_SUCH = (GONE, "INVALID_PARAMETER_VALUE")
"""Of an alias nobody set, of a model nobody registered, and of a name that no alias can have."""
LATER = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}
"""What a store, or a proxy before it, replies that may reply better the next time."""
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


class Registry:
    """A model's registry, opened for reading."""

    def __init__(self, uri: str, config: TrackingConfig) -> None:
        self.uri, self.model = uri, config.model
        self.client = mlflow_client(uri, config)

    def version_named(self, name: str) -> Any:
        """Find the model version of an alias, of a bundle's version, or ``number:<n>``.

        Raises:
            ValueError: There is none.
        """
        found = None
        with passing(*NO_SUCH):
            if name.startswith(NUMBER):
                found = self.client.get_model_version(self.model, name.removeprefix(NUMBER))
            else:
                found = self.client.get_model_version_by_alias(self.model, name)
        if found is None:
            found = next(iter(registered(self.client, self.model, **{VERSION_TAG: name})), None)
        if found is None:
            raise ValueError(
                f"{name!r} is neither an alias nor a bundle of the model {self.model!r} in "
                f"{self.uri}; there are: {self.listed()}. Name one, or another --model"
            )
        return found

    def listed(self) -> str:
        """Name the bundles of the model, newest first."""
        found = [one.tags.get(VERSION_TAG) for one in registered(self.client, self.model)]
        versions = list(dict.fromkeys(one for one in found if one))
        return ", ".join(versions[:20]) + (", ..." if versions[20:] else "") or "none"

    def bundle_of(self, found: Any) -> RegisteredBundle:
        """Read which bundle a model version is.

        Raises:
            ValueError: It is none that this platform registered.
        """
        version, digest = found.tags.get(VERSION_TAG, ""), found.tags.get(DIGEST_TAG, "")
        if not re.fullmatch(VERSION_PATTERN, version) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(
                f"version {found.version} of the model {self.model!r} in {self.uri} has the tags "
                f"{VERSION_TAG}={version!r} and {DIGEST_TAG}={digest!r}; a bundle that recsys "
                "registered has its version and the sha256 of its manifest there. Nothing of it "
                "is read: point the alias at a version that recsys registered"
            )
        return RegisteredBundle(number=str(found.version), version=version, digest=digest)

    def look_up(self, name: str, served_digest: str | None) -> dict[str, Any]:
        """Find the bundle behind a name, and whether the served one is registered."""
        named = self.bundle_of(self.version_named(name))
        tags = {DIGEST_TAG: served_digest or "none"}
        known = bool(registered(self.client, self.model, **tags))
        return {"named": asdict(named), "served_is_registered": known}

    def fetch(self, name: str, bundles: Path) -> dict[str, Any]:
        """Fetch a bundle and what it stands on, the oldest first into its place."""
        bundles.mkdir(parents=True, exist_ok=True)
        with locked(bundles / LOCK):
            named = found = self.version_named(name)
            wanted = self.bundle_of(found)
            chain: list[Download] = []
            while True:
                bundle = self.bundle_of(found)
                download = Download(
                    bundle=bundle,
                    final=bundle_directory(bundles, bundle.version),
                    source=self.client.get_model_version_download_uri(self.model, bundle.number),
                    uri=self.uri,
                    what=f"bundle {bundle.version} (version {bundle.number} of {self.model!r})",
                )
                chain.append(download)
                parent = download.manifest().parent
                if parent is None:
                    break
                found = self.parent_of(bundle, parent.version, parent.digest)
            Download.sweep(bundles, chain)
            for one in reversed(chain):
                one.fetch()
            adapters = Companions(self.client, self.uri, named, wanted).fetch(bundles)
        return {
            "bundle": asdict(wanted),
            "num_files": sum(one.num_files for one in chain),
            "num_bytes": sum(one.num_bytes for one in chain),
            "adapters": adapters,
        }

    def parent_of(self, bundle: RegisteredBundle, version: str, digest: str) -> Any:
        """Find the bundle that a delta was appended to.

        Raises:
            ValueError: It is not registered.
        """
        tags = {VERSION_TAG: version, DIGEST_TAG: digest}
        found = registered(self.client, self.model, **tags)
        if not found or version == bundle.version:
            raise ValueError(
                f"bundle {bundle.version} was appended to {version} with digest {digest}, which "
                f"is not in {self.uri}; `recsys promote {bundle.version}` where it was made "
                "registers both"
            )
        return found[0]


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is requested; say what came of it."""
    uri, config = request["uri"], TrackingConfig(**request["config"])
    place = local_path(uri)
    if place is not None and not place.exists():
        return {"unreachable": f"there is no registry at {uri}: {place} does not exist"}
    if is_server(uri) and not answers(uri, config.request_seconds):
        return {"unreachable": f"no answer from the registry {uri}"}
    from mlflow.exceptions import MlflowException

    try:
        registry = Registry(uri, config)
        if request["what"] == "look_up":
            return {"found": registry.look_up(request["name"], request["digest"])}
        return {"found": registry.fetch(request["name"], Path(request["bundles"]))}
    except MlflowException as error:
        kind = "unreachable" if error.error_code in LATER else "refused"
        return {kind: f"the registry {uri}: {first_line(error)}"}
    except OSError as error:
        # What requests raises is one as well.
        if isinstance(error, DiskError) or error.errno in OF_THE_DISK:
            return {"disk": str(error)}
        return {"unreachable": f"the registry {uri}: {first_line(error)}"}
    except ValueError as error:
        return {"refused": str(error)}
    except Exception as error:
        # Whatever a database or the driver of an object store can raise.
        return {"unreachable": f"the registry {uri}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    """Name an error by its kind and the first line of its text."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def main() -> None:
    """Answer the request in the arguments; the last line is the reply as JSON."""
    reply = reply_to(json.loads(sys.argv[1]))
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{json.dumps(reply)}\n")


if __name__ == "__main__":
    main()
