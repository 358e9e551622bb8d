"""What a run would do and why, beside what it then does."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import Result

from pipelines.stages.list import STAGES

Recsys = Callable[..., Result]


@pytest.fixture
def copied(shop: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A finished workspace and its configuration, to be changed."""
    workspace = tmp_path / "run"
    shutil.copytree(shop, workspace, symlinks=True)
    files = tmp_path / "files"
    files.mkdir()
    for path in shop.parent.iterdir():
        if path.is_file():
            shutil.copy2(path, files)
    return files / "shop.toml", workspace


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def planned(recsys: Recsys, config: Path, workspace: Path, *options: str) -> dict[str, Any]:
    before = states(workspace)
    found = recsys("run", "-c", config, "-w", workspace, "--dry-run", "--json", *options)
    assert found.exit_code == 0, found.output
    assert states(workspace) == before, "nothing is written"
    document: dict[str, Any] = json.loads(found.stdout)
    document["stages"] = {one.pop("stage"): one for one in document["stages"]}
    return document


def run(recsys: Recsys, config: Path, workspace: Path, *options: str) -> set[str]:
    """Run, and return the stages that were run, by the history."""
    assert recsys("run", "-c", config, "-w", workspace, "-q", *options).exit_code == 0
    line = (workspace / "history.jsonl").read_text().splitlines()[-1]
    return set(json.loads(line)["details"]["stages"])


def test_nothing_would_run_where_nothing_changed(recsys: Recsys, copied: tuple[Path, Path]) -> None:
    found = planned(recsys, *copied)
    assert {one["runs"] for one in found["stages"].values()} == {"no"}
    assert found["seconds"] == 0
    assert run(recsys, *copied) == set()
    shown = recsys("run", "-c", copied[0], "-w", copied[1], "--dry-run").output
    assert f"0 of {len(STAGES)} stages would run; nothing was written" in shown


def test_a_changed_setting_is_named_with_both_values(
    recsys: Recsys, copied: tuple[Path, Path]
) -> None:
    option = ("--set", "release.max_loss=0.5")
    found = planned(recsys, *copied, *option)
    release = found["stages"]["release"]
    assert release["runs"] == "yes"
    assert release["why"][0].startswith("setting release.max_loss = 0.5 (was 0.")
    assert release["seconds"] > 0
    assert release["memory_bytes"] > 0
    assert found["stages"]["adapt_domains"]["runs"] == "if changed"
    assert found["stages"]["adapt_domains"]["why"] == ["it reads release, made again"]
    may = {name for name, one in found["stages"].items() if one["runs"] != "no"}
    assert run(recsys, *copied, *option) <= may


def test_more_events_run_the_features_and_all_that_reads_them(
    recsys: Recsys, copied: tuple[Path, Path]
) -> None:
    config, workspace = copied
    events = pl.read_csv(config.parent / "events.csv")
    pl.concat([events, events]).write_csv(config.parent / "events.csv")
    found = planned(recsys, config, workspace)
    features = found["stages"]["build_features"]
    assert features["why"] == ["changed: events[0]"]
    before = json.loads((workspace / "build_features/run.json").read_text())
    assert features["seconds"] == pytest.approx(before["seconds"])
    assert features["memory_bytes"] == before["peak_memory_bytes"]
    others = [one["runs"] for name, one in found["stages"].items() if name != "build_features"]
    assert set(others) == {"if changed"}


def test_code_and_libraries_that_changed_are_named(
    recsys: Recsys, copied: tuple[Path, Path]
) -> None:
    config, workspace = copied
    path = workspace / "build_index/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"] |= {"code": "0" * 64, "numpy": "0.1"}
    path.write_text(json.dumps(manifest))
    path = workspace / "build_index/run.json"
    run_before = json.loads(path.read_text())
    run_before["code"] |= {"recsys/retrieval/faiss_library.py": "0" * 8}
    path.write_text(json.dumps(run_before))
    why = planned(recsys, config, workspace)["stages"]["build_index"]["why"]
    assert why[0] == "code: recsys/retrieval/faiss_library.py"
    assert why[1].startswith("library numpy ")
    assert why[1].endswith("(was 0.1)")


def test_missing_files_and_artefacts_are_named(recsys: Recsys, copied: tuple[Path, Path]) -> None:
    config, workspace = copied
    shutil.rmtree(workspace / "embed_items")
    shutil.rmtree((workspace / "bundles/current").resolve())
    found = planned(recsys, config, workspace)["stages"]
    assert found["embed_items"]["why"] == ["it was never made here"]
    assert found["embed_items"]["seconds"] is None
    alone = planned(recsys, config, workspace, "--stage", "build_index")["stages"]
    assert alone["build_index"]["runs"] == "fails"
    assert "reads embed_items, which is not there" in alone["build_index"]["why"][0]
    (config.parent / "items.csv").unlink()
    found = planned(recsys, config, workspace)["stages"]
    assert {one["runs"] for one in found.values()} == {"fails"}
    assert "there is no file" in found["build_features"]["why"][0]


def test_a_bundle_that_is_gone_is_released_anew(recsys: Recsys, copied: tuple[Path, Path]) -> None:
    shutil.rmtree((copied[1] / "bundles/current").resolve())
    release = planned(recsys, *copied)["stages"]["release"]
    assert release["why"] == ["what it wrote outside its folder is not there"]


def test_in_a_new_workspace_times_are_unknown(
    recsys: Recsys, copied: tuple[Path, Path], tmp_path: Path
) -> None:
    nowhere = tmp_path / "new"
    result = recsys("run", "-c", copied[0], "-w", nowhere, "--dry-run")
    assert result.exit_code == 0, result.output
    assert not nowhere.exists()
    assert "time: unknown; memory: unknown" in result.output
    assert "never run here" in result.output


def test_json_is_for_plans_alone(recsys: Recsys, copied: tuple[Path, Path]) -> None:
    assert recsys("run", "-c", copied[0], "-w", copied[1], "--json").exit_code == 2


def test_two_schedulers_run_stages_that_need_no_chain_at_once(
    recsys: Recsys, copied: tuple[Path, Path]
) -> None:
    config, workspace = copied
    names = ("train_two_tower", "train_sequence", "fit_baselines")
    before = {name: (workspace / name / "manifest.json").read_bytes() for name in names}
    script = "from pipelines.cli.main import app; app()"
    command = [sys.executable, "-c", script, "run", "-c", config, "-w", workspace, "-q"]
    children = [
        subprocess.Popen([*map(str, command), "--stage", name, "--force", name]) for name in names
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    after = {name: (workspace / name / "manifest.json").read_bytes() for name in names}
    assert after == before
