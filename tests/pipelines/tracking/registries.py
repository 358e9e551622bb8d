"""Bundles to register, and a registry in SQLite with files in a folder, as without a server."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.config.tracking import TrackingConfig
from pipelines.publishing.promotion import record_champion
from pipelines.tracking.outbox import Outbox
from pipelines.tracking.tracking import SyncResult, outbox_of, sync_outbox
from serving.bundle.delta import NewItem, write_delta
from tests.pipelines.tracking.mlflow_server import client
from tests.serving.synthetic_bundle import write_synthetic_bundle


def write_bundles(folder: Path) -> Path:
    """Write v1, v2, and v2+1 with one new item."""
    folder.mkdir(parents=True)
    for version in ("v1", "v2"):
        write_synthetic_bundle(folder, version)
    item = NewItem(item_id="fresh", display_text="Fresh")
    content, vectors = np.zeros((1, 4), np.float32), np.ones((1, 8), np.float32)
    write_delta(folder, "v2", [item], content=content, item_vectors=vectors)
    return folder


@dataclass(frozen=True)
class Shop:
    """A workspace with bundles, and the registry that it sends to."""

    workspace: Path
    config: TrackingConfig

    @property
    def bundles(self) -> Path:
        return self.workspace / "bundles"

    @property
    def outbox(self) -> Outbox:
        return outbox_of(self.workspace)

    @property
    def uri(self) -> str:
        assert self.config.uri is not None
        return self.config.uri

    def register(self, version: str) -> SyncResult:
        """Record a bundle as champion, and send it."""
        record_champion(self.outbox, self.config.model, self.bundles, version, "promote")
        return sync_outbox(self.outbox, self.config)

    def champion(self) -> str:
        """Name the bundle behind the alias in the registry."""
        found = client(self.uri).get_model_version_by_alias(self.config.model, "champion")
        return str(found.tags["bundle"])

    def move_alias(self, version: str) -> None:
        """Point the alias at a bundle, as somebody does on MLflow's page."""
        store, model = client(self.uri), self.config.model
        versions = {
            one.tags["bundle"]: one.version
            for one in store.search_model_versions(f"name = '{model}'")
        }
        store.set_registered_model_alias(model, "champion", versions[version])

    def stored(self, version: str) -> Path:
        """Return the folder of a bundle's files, as last registered in a store without a server."""
        found = client(self.uri).search_model_versions(
            f"name = '{self.config.model}' and tags.`bundle` = '{version}'"
        )
        newest = max(found, key=lambda one: int(one.version))
        return Path(newest.source.removeprefix("file://"))

    def has_files(self, version: str) -> bool:
        """Whether a store without a server has the files of a bundle."""
        store = client(self.uri)
        names = f"name = '{self.config.model}' and tags.`bundle` = '{version}'"
        return bool(store.search_model_versions(names)) and self.stored(version).exists()


def shop_of(folder: Path, bundles: Path, uri: str, name: str) -> Shop:
    """Make a workspace with copies of bundles and a model of its own in a registry."""
    workspace = folder / name
    shutil.copytree(bundles, workspace / "bundles", symlinks=True)
    config = TrackingConfig(uri=uri, model=name, experiment=name, sync_seconds=120.0)
    return Shop(workspace=workspace, config=config)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


KILLED = """
import os, signal, sys
from pipelines.tracking.store import {module} as part
whole, left = part.{name}, {after}
def dying(*arguments):
    global left
    found = whole(*arguments)
    left -= 1
    if not left:
        {end}
    return found
part.{name} = dying
from pipelines.tracking.store import {main}
{main}.main()
"""


def child(module: str, after: int, end: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the sending or fetching process; after some files ``end`` happens in it."""
    name, main = {
        "uploads": ("Upload.send_file", "sender"),
        "downloads": ("Download.fetch_file", "reader"),
    }[module]
    code = KILLED.format(module=module, name=name, after=after, end=end, main=main)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
