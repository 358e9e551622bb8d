"""Bundles to register, a registry in SQLite, and a folder that bundles are copied to."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipelines.config.operation import TrackingConfig
from pipelines.engine.decisions import Decision
from pipelines.publishing.from_registry import Pulled, pull
from pipelines.publishing.promotion import promote
from pipelines.tracking.outbox import Outbox, SyncResult, open_outbox, sync_outbox
from pipelines.tracking.store import RegisteredBundle, look_up
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
        return open_outbox(self.workspace)

    @property
    def uri(self) -> str:
        assert self.config.uri is not None
        return self.config.uri

    def enter(self, version: str, alias: str = "champion") -> None:
        """Record a bundle under an alias, without a decision on it."""
        change = Decision(
            outcome="promoted" if alias == "champion" else "kept as challenger",
            challenger=version,
            champion=None,
            challenger_digest=None,
            serves=version if alias == "champion" else None,
        )
        self.outbox.enter_change(self.config, self.bundles, change)

    def register(self, version: str) -> SyncResult:
        """Record a bundle as champion, and send it."""
        self.enter(version)
        return sync_outbox(self.outbox, self.config)

    def promote(self, version: str) -> None:
        """Promote here, and record it."""
        change = promote(self.bundles, version, force=True)
        self.outbox.enter_change(self.config, self.bundles, change)

    def serve(self, version: str) -> None:
        """Promote here, and send it."""
        self.promote(version)
        assert sync_outbox(self.outbox, self.config).problem is None

    def pull(self, bundles: Path | None = None) -> Pulled:
        """Follow the alias here, or on a machine with other bundles."""
        bundles = bundles or self.bundles
        return pull(bundles, config=self.config, outbox=open_outbox(bundles.parent))

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
        """Return the folder of a bundle's copy."""
        assert self.config.bundles is not None
        return Path(self.config.bundles) / f"bundle-{version}"

    def named(self) -> RegisteredBundle:
        """Look up what the registry says of the champion."""
        return look_up(self.uri, self.config, "champion")


def shop_of(folder: Path, bundles: Path, uri: str, name: str) -> Shop:
    """Make a workspace with copies of bundles and a model of its own in a registry."""
    workspace = folder / name
    shutil.copytree(bundles, workspace / "bundles", symlinks=True)
    place = str(folder / f"{name}-copies")
    config = TrackingConfig(uri=uri, model=name, experiment=name, bundles=place)
    config = replace(config, sync_seconds=120.0, request_seconds=60)
    return Shop(workspace=workspace, config=config)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
