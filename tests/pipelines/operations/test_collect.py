"""What recsys gc removes, and what it leaves and why."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.engine.artifacts import Manifest
from pipelines.engine.history import read_history
from pipelines.engine.workspace import Workspace, publishing
from pipelines.operations.collect import CollectResult, collect
from pipelines.publishing.promotion import note_release, promote
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle

Aged = Callable[[Path, float], None]


@pytest.fixture
def shop(five_bundles: Path, tmp_path: Path, aged: Aged) -> Path:
    """A workspace with bundles v1 to v5, each 100 days old; v5 is champion, v4 was before."""
    bundles = tmp_path / "bundles"
    shutil.copytree(five_bundles, bundles, symlinks=True)
    for version in ("v4", "v5"):
        promote(bundles, version)
    aged(bundles, 100)
    return tmp_path


def gc(shop: Path, *, days: float = 14, keep: int = 1, dry: bool = False) -> CollectResult:
    return collect(shop, shop / "bundles", keep_days=days, keep=keep, dry=dry)


def present(shop: Path) -> set[str]:
    return {path.name.removeprefix("bundle-") for path in (shop / "bundles").glob("bundle-*")}


def test_champion_and_the_one_before_stay_and_the_rest_goes(shop):
    dry = gc(shop, dry=True)
    assert present(shop) == {"v1", "v2", "v3", "v4", "v5"}
    found = gc(shop)
    assert dry.removed == found.removed
    assert present(shop) == {"v4", "v5"}
    assert found.kept["v5"] == "champion"
    assert "rollback" in found.kept["v4"] or "champion until" in found.kept["v4"]
    assert [one.name for one in found.removed] == ["bundle-v1", "bundle-v2", "bundle-v3"]
    assert found.num_bytes > 10_000
    load_bundle(shop / "bundles/current")
    assert gc(shop).removed == []
    assert not list((shop / "bundles").glob(".partial-*"))


def test_the_challenger_and_what_a_link_points_at_stay(shop):
    note_release(shop / "bundles", "v2", promoted=False)
    (shop / "bundles/stable").symlink_to("bundle-v3")
    found = gc(shop)
    assert present(shop) == {"v2", "v3", "v4", "v5"}
    assert found.kept["v2"] == "challenger"
    assert found.kept["v3"] == "the link stable points at it"


def test_bundles_stay_that_are_young_or_among_the_newest(shop, aged):
    aged(shop / "bundles/bundle-v1", 3)
    aged(shop / "bundles/bundle-v2", 13)
    aged(shop / "bundles/bundle-v3", 15)
    found = gc(shop)
    assert present(shop) == {"v1", "v2", "v4", "v5"}
    assert "within the days that are kept" in found.kept["v2"]
    gc(shop, days=1, keep=2)
    assert present(shop) == {"v1", "v2", "v4", "v5"}
    gc(shop, days=1, keep=1)
    assert present(shop) == {"v1", "v4", "v5"}


def test_what_a_served_delta_stands_on_stays(shop, aged):
    bundles = shop / "bundles"
    width = np.load(bundles / "bundle-v1/two_tower/item_vectors.npy").shape[1]
    content = np.load(bundles / "bundle-v1/content/content.npy").shape[1]
    new = [NewItem(item_id="new", display_text="new", categories=[])]
    delta = write_delta(
        bundles,
        "v1",
        new,
        content=np.ones((1, content), np.float32),
        item_vectors=np.ones((1, width), np.float32),
    )
    promote(bundles, "v1+1")
    aged(delta, 100)
    found = gc(shop)
    assert present(shop) == {"v1", "v1+1", "v4", "v5"}
    assert found.kept["v1"] == "v1+1 extends it"
    load_bundle(bundles / "current")


def test_a_bundle_that_a_process_serves_is_left_until_it_ends(shop):
    script = f"""
from pathlib import Path
from serving.bundle.load import load_bundle
bundle = load_bundle(Path({str(shop / "bundles/bundle-v2")!r}))
print("loaded", flush=True)
input()
"""
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ, **pipes) as server:
        assert server.stdout.readline() == "loaded\n"
        found = gc(shop)
        assert present(shop) == {"v2", "v4", "v5"}
        assert found.refused == {"v2": "a server or another process uses it"}
        server.communicate("\n")
    gc(shop)
    assert present(shop) == {"v4", "v5"}


def test_links_are_never_followed_out_of_the_folder(shop, tmp_path):
    outside = tmp_path / "elsewhere"
    shutil.copytree(shop / "bundles/bundle-v1", outside)
    before = sorted(outside.rglob("*"))
    (shop / "bundles/bundle-v9").symlink_to(outside)
    shutil.rmtree(shop / "bundles/bundle-v2/catalogue")
    (shop / "bundles/bundle-v2/catalogue").symlink_to(outside)
    gc(shop, days=0)
    assert sorted(outside.rglob("*")) == before
    assert (shop / "bundles/bundle-v9").is_symlink()
    assert present(shop) == {"v4", "v5", "v9"}


def test_what_is_served_or_young_stays_of_all_that_lies_beside_bundles(shop, aged):
    """Adapters, what bundles were made from, and what a killed call left."""
    bundles = shop / "bundles"
    domain, released = bundles / "adapters/domain-films", shop / "released"
    for version in ("adapter-old", "adapter-served", "adapter-young"):
        (domain / version).mkdir(parents=True)
        aged(domain / version, 1 if version.endswith("young") else 100)
    (domain / "current").symlink_to("adapter-served")
    for version in ("v2", "v5", "gone", "coming"):
        (released / version).mkdir(parents=True)
    aged(released / "gone", 100)
    (bundles / "bundle-v1").rename(bundles / ".partial-removed-bundle-v1")
    (bundles / ".partial-candidate").mkdir()
    (bundles / ".partial-young").mkdir()
    aged(bundles / ".partial-candidate", 100)
    gc(shop)
    assert {path.name for path in bundles.glob(".partial-*")} == {".partial-young"}
    assert {path.name for path in released.iterdir()} == {"v5", "coming"}
    kept = {path.name for path in domain.iterdir()}
    assert kept == {"adapter-served", "adapter-young", "current"}


def test_training_states_of_finished_stages_and_old_ones_go(shop, aged):
    manifest = Manifest(
        stage="train_sequence", inputs={}, config={}, versions={}, rows={}, files={}
    )
    (shop / "train_sequence").mkdir()
    (shop / "train_sequence/manifest.json").write_text(manifest.to_json())
    workspace = Workspace(shop)
    done = workspace.checkpoints("train_sequence", manifest.making)
    young, old = (workspace.checkpoints("train_two_tower", key * 32) for key in ("ab", "cd"))
    for path in (done, young, old):
        path.mkdir(parents=True)
    aged(old, 100)
    with workspace.lock():
        found = gc(shop)
    assert "training states were left" in found.notes[0]
    assert len(list((shop / "checkpoints").iterdir())) == 3
    gc(shop)
    assert list((shop / "checkpoints").iterdir()) == [young]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_says_what_went_and_records_it(shop):
    shown = run("gc", shop, "--keep", 1, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "3 would be removed" in shown.output
    assert read_history(shop) == []
    found = run("gc", shop, "--keep", 1, "--json")
    assert found.exit_code == 0, found.output
    assert len(json.loads(found.stdout)["removed"]) == 3
    assert run("gc", shop, "--keep", 1).exit_code == 0
    assert [(one.command, one.outcome) for one in read_history(shop)] == [
        ("gc", "done"),
        ("gc", "nothing to do"),
    ]
    assert run("gc", shop / "nowhere").exit_code == 2


def test_two_that_change_the_folder_exclude_each_other(shop, monkeypatch):
    monkeypatch.setattr("pipelines.engine.workspace.PATIENCE_SECONDS", 0.05)
    with publishing(shop / "bundles"):
        found = run("gc", shop)
    assert found.exit_code == 75
    assert f"in use by process {os.getpid()}" in " ".join(found.output.split())
    assert present(shop) == {"v1", "v2", "v3", "v4", "v5"}
