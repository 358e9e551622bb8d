"""What an increment continues, and what it and its checks are held against."""

import os
from dataclasses import asdict, replace

import numpy as np

from pipelines.config.operation import ReleaseConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.workspace import UPDATE
from pipelines.partitions.manifest import Partition, PartitionsManifest
from pipelines.publishing.released import (
    DOCUMENT,
    Released,
    bounds_for,
    champion_metrics,
    find_held_out,
    link_tree,
    read_settings,
    released_folder,
)
from recsys.data.dataset import Sequences
from serving.bundle.manifest import read_manifest
from tests.serving.synthetic_bundle import write_synthetic_bundle

MEASURED = {"blend": {"ndcg@10": 0.1}}
MIDNIGHT = 1_767_312_000
"""2026-01-02, Unix seconds."""


def document(**changes) -> Released:
    fields = {"version": "v2", "kind": "incremental", "time": "t", "full_time": "t"}
    return Released(**{**fields, "full_version": "v1", "until": MIDNIGHT + 50, **changes})


def test_an_increment_is_held_against_the_full_run_that_it_continues(tmp_path):
    manifest = read_manifest(write_synthetic_bundle(tmp_path, "v1"))[0]
    assert champion_metrics(tmp_path, tmp_path, None, MEASURED) is None
    assert champion_metrics(tmp_path / UPDATE, tmp_path, manifest, {}) is None
    assert champion_metrics(tmp_path, tmp_path, manifest, MEASURED) == manifest.metrics
    champion = manifest.model_copy(update={"version": "v2", "metrics": MEASURED})
    folder = released_folder(tmp_path / UPDATE, "v2+1")
    folder.mkdir(parents=True)
    for full, expected in (("v1", manifest.metrics), ("v2", MEASURED), ("gone", {})):
        kept = document(full_version=full)
        (folder / DOCUMENT).write_text(to_json(asdict(kept)))
        assert Released.load(folder) == kept
        assert champion_metrics(tmp_path / UPDATE, tmp_path, champion, MEASURED) == expected
    # Of another version or damaged it says nothing.
    for text in ("{", '{"version": "v2"}'):
        (folder / DOCUMENT).write_text(text)
        assert Released.read(folder) is None
    assert read_settings(folder, "train_sequence") is None


def test_a_days_few_users_are_not_asked_for_a_gain_over_popularity(tmp_path):
    config = ReleaseConfig(min_gain_over_popularity=0.1)
    assert bounds_for(config, tmp_path, 5) is config
    assert bounds_for(config, tmp_path / UPDATE, config.min_compared) is config
    assert bounds_for(config, tmp_path / UPDATE, 5).min_gain_over_popularity == -1


def test_new_events_are_of_changed_partitions_or_later_than_what_is_known(tmp_path):
    kept = document()
    assert kept.new_since(tmp_path / UPDATE) == MIDNIGHT + 51
    (tmp_path / "partitions").mkdir()
    day = Partition(files=(), digests=("d",), rows=1, arrived="")
    manifest = PartitionsManifest(source="s", partitions={"2026-01-02": day})
    manifest.write(tmp_path)
    assert kept.new_since(tmp_path / UPDATE) == MIDNIGHT
    known = replace(kept, partitions=manifest.digests())
    assert known.new_since(tmp_path) == MIDNIGHT + 51


def test_held_out_users_are_those_with_events_after_training():
    sequences = Sequences(
        item_rows=np.array([1, 2, 3, 4]),
        offsets=np.array([0, 0, 2, 4]),
        train_end=np.array([0, 2, 3]),
        validation_end=np.array([0, 2, 4]),
        times=np.array([5, 6, 7, 8]),
    )
    rows, since = find_held_out(sequences)
    assert (rows.tolist(), since) == ([2], 8)
    assert find_held_out(replace(sequences, times=None))[1] is None


def test_a_disk_without_hard_links_gets_copies(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError("no links here")

    (tmp_path / "stage").mkdir()
    (tmp_path / "stage/weights").write_text("w")
    link_tree(tmp_path / "stage", tmp_path / "linked")
    monkeypatch.setattr(os, "link", refused)
    link_tree(tmp_path / "stage", tmp_path / "copied")
    files = [(tmp_path / name / "weights").stat() for name in ("stage", "linked", "copied")]
    assert files[0].st_ino == files[1].st_ino != files[2].st_ino
