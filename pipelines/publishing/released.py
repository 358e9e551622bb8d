"""Artefacts of released bundles, kept so that a day's increment can continue them.

<workspace>/released/<version>/
  released.json    what its models were fitted on
  held_out.npy     rows of users whose newest events they were not fitted on
  <stage>/         artefacts of that run, as hard links: no copy

A bundle that is served again after a rollback is what the next increment continues.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from features.forget_list import APPLIED
from pipelines.config.operation import ReleaseConfig
from pipelines.engine.artifacts import MANIFEST, Manifest, write_json
from pipelines.engine.workspace import RELEASED, UPDATE, DailyState, Workspace
from pipelines.partitions.manifest import PartitionsManifest, parse_begin
from recsys.data.dataset import Sequences
from recsys.data.durable import new_directory
from recsys.fitting.queries import GIVEN
from serving.bundle.manifest import BundleManifest, bundle_directory, read_manifest

Metrics = Mapping[str, Mapping[str, float]]
DOCUMENT, HELD_OUT = "released.json", "held_out.npy"
STAGES = (
    "build_semantic_ids",
    "fit_baselines",
    "train_two_tower",
    "train_sequence",
    "train_generative",
    "fit_blend",
    "train_ranker",
    "refit",
)
FEATURES = "build_features"


@dataclass(frozen=True, kw_only=True)
class Released:
    """Data that the models of a released bundle were fitted on."""

    version: str
    kind: str
    """``full`` or ``incremental``."""
    time: str
    full_time: str
    full_version: str
    """Bundle of that full run."""
    until: int | None
    """Unix seconds of the latest event that trained models know; None without times."""
    held_out_since: int | None = None
    """Unix seconds from which held-out users' events were left out; None of a full run."""
    partitions: Mapping[str, str] = field(default_factory=dict)
    """Digest of each partition that trained models know, by key; those that counts alone were
    updated by since are not among them."""

    @classmethod
    def read(cls, folder: Path) -> Released | None:
        """Read what a folder holds; None where it is not complete or of another version."""
        path = folder / DOCUMENT
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError):
            return None

    @classmethod
    def load(cls, folder: Path) -> Released:
        """Read a folder that an increment continues: complete and of this version."""
        found = cls.read(folder)
        assert found is not None
        return found

    def new_since(self, workspace: Path) -> int:
        """Return the Unix second from which events of an increment are new.

        They are of changed partitions, or later than all that trained models know.
        """
        assert self.until is not None
        manifest = PartitionsManifest.read(shop_workspace(workspace))
        digests = {} if manifest is None else manifest.digests()
        changed = [key for key in digests if self.partitions.get(key) != digests[key]]
        begins = [int(parse_begin(key).timestamp()) for key in changed]
        return min([*begins, self.until + 1])


def shop_workspace(workspace: Path) -> Path:
    """Return the workspace that an increment's workspace belongs to, or itself."""
    return DailyState(workspace).workspace


def released_folder(workspace: Path, version: str) -> Path:
    """Return the folder of a released version, delta or not."""
    return DailyState(workspace).released / version.partition("+")[0]


def keep_released(
    workspace: Workspace, version: str, inputs: Mapping[str, Path], *, trained: bool
) -> None:
    """Keep what a bundle was made from, before it is published."""
    final = released_folder(workspace.path, version)
    if final.exists():
        shutil.rmtree(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    before = Released.read(workspace.stage(RELEASED)) if workspace.path.name == UPDATE else None
    features = inputs[FEATURES]
    sequences = Sequences.load(features / "sequences" / GIVEN)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    times, manifest = sequences.times, PartitionsManifest.read(shop_workspace(workspace.path))
    known: Mapping[str, str] = {} if manifest is None else manifest.digests()
    held_out, since = np.zeros(0, np.int64), None
    until = None if times is None or not len(times) else int(np.asarray(times).max())
    if before is not None and trained:
        held_out, since = find_held_out(sequences)
    elif before is not None:
        held_out = np.load(workspace.stage(RELEASED) / HELD_OUT, allow_pickle=False)
        since, until, known = before.held_out_since, before.until, before.partitions
    document = Released(
        version=version,
        kind="incremental" if before else "full",
        time=now,
        full_time=before.full_time if before else now,
        full_version=before.full_version if before else version,
        until=until,
        held_out_since=since,
        partitions=known,
    )
    with new_directory(final) as partial:
        for stage in STAGES:
            if (workspace.stage(stage) / MANIFEST).exists():
                link_tree(workspace.stage(stage), partial / stage)
        # They say which row an id has.
        link_tree(features / "vocabularies", partial / FEATURES / "vocabularies")
        for name in (MANIFEST, "features.json", APPLIED):
            if name != APPLIED or (features / name).exists():
                link(features / name, partial / FEATURES / name)
        np.save(partial / HELD_OUT, held_out)
        write_json(partial / DOCUMENT, asdict(document))


def champion_metrics(
    workspace: Path, bundles: Path, champion: BundleManifest | None, metrics: Metrics
) -> Metrics | None:
    """Return the metrics of a champion's full run; None where they say nothing.

    An increment's own are of one day's held-out users: few, and other queries than a full run has.

    Args:
        champion: What is served; None where nothing is.
    """
    if champion is None or (workspace.name == UPDATE and not metrics):
        return None
    kept = Released.read(released_folder(workspace, champion.version))
    if kept is None or kept.full_version == champion.version:
        return champion.metrics
    directory = bundle_directory(bundles, kept.full_version)
    return read_manifest(directory)[0].metrics if directory.is_dir() else {}


def bounds_for(config: ReleaseConfig, workspace: Path, num_users: int) -> ReleaseConfig:
    """Leave out checks that a day's few held-out users cannot pass with any model."""
    if workspace.name != UPDATE or num_users >= config.min_compared:
        return config
    return replace(config, min_gain_over_popularity=-1.0)


def find_held_out(sequences: Sequences) -> tuple[NDArray[np.int64], int | None]:
    """Find the users whose newest events no model was fitted on, and the earliest of these."""
    starts, ends = np.asarray(sequences.train_end), np.asarray(sequences.offsets[1:])
    rows = np.flatnonzero(starts < ends)
    if not len(rows) or sequences.times is None:
        return rows, None
    return rows, int(np.asarray(sequences.times)[starts[rows]].min())


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder as hard links; its files are never changed in place."""
    shutil.copytree(source, target, copy_function=link)


def link(source: str | Path, target: str | Path) -> None:
    """Link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def read_settings(folder: Path, stage: str) -> Mapping[str, object] | None:
    """Read the settings that a kept artefact was made with; None where the stage did not run."""
    manifest = Manifest.read(folder / stage)
    return None if manifest is None else manifest.config
