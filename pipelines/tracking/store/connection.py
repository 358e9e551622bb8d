"""Open an MLflow store, and find registered bundles in it by their tags.

Only modules of this folder import MLflow, in processes of their own. Nothing is ever loaded by it:
a registry entry says where a bundle's files lie, and ``serving.bundle`` verifies and loads them.
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pipelines.config.tracking import TrackingConfig

VERSION_TAG = "bundle"
DIGEST_TAG = "bundle_digest"
PARENT_TAG = "parent"
REMOVED_TAG = "files"
"""Of a version whose files are no longer in the store."""
GONE = "RESOURCE_DOES_NOT_EXIST"
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
Event = dict[str, Any]


def mlflow_client(uri: str, config: TrackingConfig) -> Any:
    """Import MLflow, quiet and bounded, and return its client.

    Must be called in a process that ends with its work: it changes the environment.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    os.environ[TIMEOUT] = str(config.request_seconds)
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = str(config.max_retries)
    os.environ["MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"] = "1"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def answers(uri: str, seconds: float) -> bool:
    """Check that a server is there, before the seconds that importing MLflow takes."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=seconds) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def local_path(uri: str) -> Path | None:
    """Return the database or folder of a store on this machine; None of any other."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return Path(parts.path.removeprefix("/"))
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(uri)


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let a request take longer: a server that passes a large file on replies when that is done."""
    before = os.environ[TIMEOUT]
    os.environ[TIMEOUT] = str(max(int(seconds), int(before)))
    try:
        yield
    finally:
        os.environ[TIMEOUT] = before


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """Pass over some errors of the store."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


def registered(client: Any, model: str, **tags: str) -> list[Any]:
    """List the versions of a model that have tags, newest first."""
    conditions = [f"name = {quoted(model)}"]
    conditions += [f"tags.`{name}` = {quoted(value)}" for name, value in tags.items()]
    found = client.search_model_versions(" and ".join(conditions))
    return sorted(found, key=lambda one: -int(one.version))


def quoted(value: str) -> str:
    """Quote a value for MLflow's filters."""
    mark = '"' if "'" in value else "'"
    return f"{mark}{value}{mark}"


def has_files(version: Any) -> bool:
    """Whether a version's files are in its run's store, not in some machine's folder of bundles."""
    source = str(version.source)
    uploaded = urlsplit(source).scheme != "bundle" and "/artifacts/bundle-" in source
    return uploaded and REMOVED_TAG not in version.tags and VERSION_TAG in version.tags


def stored_name(name: str, digest: str) -> str:
    """Name a bundle's file in a store.

    Names that a URL would have to quote, as of a property ``discount %``, become their digests;
    folders that it would, as of a domain, are left out.
    """
    path = PurePosixPath(name)
    plain = re.compile(r"[\w./+-]+", flags=re.ASCII)
    if plain.fullmatch(name):
        return name
    folder = path.parent if plain.fullmatch(str(path.parent)) else PurePosixPath()
    return str(folder / (digest + path.suffix))


def sizes_in_store(repository: Any, folders: set[str], above: str = "") -> dict[str, int]:
    """List the files in some folders of a store with their sizes in bytes."""
    sizes = {}
    for folder in sorted(folders):
        path = "/".join(part for part in (above, folder) if part)
        for one in repository.list_artifacts(path or None):
            if not one.is_dir:
                name = str(one.path).removeprefix(f"{above}/" if above else "")
                sizes[name] = int(one.file_size or 0)
    return sizes


def repository_of(uri: str, source: str) -> Any:
    """Open the store that holds a registered version's files."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(source, tracking_uri=uri, registry_uri=uri)
