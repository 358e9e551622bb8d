"""Runs that are repeated, spoilt or starved."""

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import Result

from pipelines.engine.decisions import read_decisions
from pipelines.stages.list import STAGES
from serving.recommend import Recommender
from tests.recsys.testing.synthetic import World

Recsys = Callable[..., Result]
DIFFERS_BY_NATURE = {
    "run.json",
    "released.json",
    "ledger.jsonl",
    # A decision has its time and that of a list.
    "releases.jsonl",
    "releases.head",
    "history.jsonl",
    "config.toml",
    "lock",
}


def digests(workspace: Path) -> dict[str, str]:
    """sha256 of every file that two equal runs must agree on, by its path."""
    return {
        str(path.relative_to(workspace)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(workspace.rglob("*"))
        if path.is_file()
        and path.name not in DIFFERS_BY_NATURE
        # A stage that another test ran by itself left its lock.
        and path.parent.name != "locks"
    }


def copy_of(shop: Path, folder: Path) -> Path:
    """Copy the raw files and the TOML; return the TOML's path."""
    folder.mkdir(exist_ok=True)
    for path in shop.parent.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder / "shop.toml"


def test_two_runs_give_equal_bytes(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    result = recsys("run", "-c", copy_of(shop, tmp_path / "again"), "-w", tmp_path / "run", "-q")
    assert result.exit_code == 0, result.output
    first, second = digests(shop), digests(tmp_path / "run")
    assert [name for name in first if first[name] != second.get(name)] == []
    assert first.keys() == second.keys()


MODELS = ("two_tower", "sequence", "generative")
QUICK = [part for name in MODELS for part in ("--set", f"{name}_training.max_epochs=1")]
"""Options of runs whose models need not be good."""


def spoil(path: Path) -> None:
    """Shuffle who took what, so that histories say nothing of what comes next."""
    events = pl.read_csv(path)
    events.with_columns(pl.col("item_id").shuffle(seed=3)).write_csv(path)


def test_worse_model_is_refused_and_the_champion_stays(
    shop: Path, world: World, recsys: Recsys, tmp_path: Path
) -> None:
    config, workspace = copy_of(shop, tmp_path / "files"), tmp_path / "run"
    shutil.copytree(shop, workspace, symlinks=True)
    champion = (workspace / "bundles/current").readlink()
    before = Recommender.load(workspace / "bundles/current").recommend(world.users[:3], k=5)

    spoil(config.parent / "events.csv")
    result = recsys("run", "-c", config, "-w", workspace, "-q", *QUICK)
    assert result.exit_code == 3, result.output
    told = " ".join(result.output.split())
    assert "refused and was not published" in told
    assert f"{champion.name} goes on serving" in told
    assert "against the champion" in told
    assert (workspace / "bundles/current").readlink() == champion
    after = Recommender.load(workspace / "bundles/current").recommend(world.users[:3], k=5)
    assert after.equals(before)
    refused = read_decisions(workspace / "bundles", None)[0][-1].decision
    assert refused.outcome == "refused"
    assert refused.failed
    assert len(list((workspace / "bundles").glob("bundle-*"))) == 1

    lenient = ["--set", "release.max_drop_from_champion=1", "--set"]
    lenient += ["release.min_gain_over_popularity=-1", "--set", "release.gate.enabled=false"]
    result = recsys("run", "-c", config, "-w", workspace, "-q", *QUICK, *lenient)
    assert result.exit_code == 0, result.output
    assert (workspace / "bundles/current").readlink() != champion
    released = read_decisions(workspace / "bundles", None)[0][-1].decision
    assert released.outcome == "released"


def test_deleted_bundle_is_released_again(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    workspace = tmp_path / "run"
    shutil.copytree(shop, workspace, symlinks=True)
    before = digests(workspace)
    shutil.rmtree((workspace / "bundles/current").resolve())
    result = recsys("run", "-c", shop.parent / "shop.toml", "-w", workspace, "-q")
    assert result.exit_code == 0, result.output
    assert f"1 stages run, {len(STAGES) - 1} skipped" in " ".join(result.output.split())
    assert digests(workspace) == before


class KilledError(BaseException):
    """Ends a run where a kill would: nothing catches it."""


@pytest.fixture
def appended(shop: Path, recsys: Recsys, tmp_path: Path) -> Path:
    """A workspace whose bundle has an item appended to it."""
    workspace = tmp_path / "run"
    shutil.copytree(shop, workspace, symlinks=True)
    (tmp_path / "new.csv").write_text("item_id,title\nnew-1,A new one\n")
    result = recsys("release", "append", tmp_path / "new.csv", "-b", workspace)
    assert result.exit_code == 0, result.output
    return workspace


def test_released_again_by_force_nothing_that_is_served_is_removed_or_rewritten(
    appended: Path, shop: Path, recsys: Recsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = appended / "bundles"
    before, served = digests(bundles), (bundles / "current").readlink()
    again = ("run", "-c", shop.parent / "shop.toml", "-w", appended, "-q", "--force", "release")

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.publishing.write_release.write_bundle", kill)
        with pytest.raises(KilledError):
            recsys(*again)
    assert (bundles / "current").readlink() == served
    assert Recommender.load(bundles / "current").bundle.version.endswith("+1")

    result = recsys(*again)
    assert result.exit_code == 0, result.output
    assert digests(bundles).items() >= before.items()
    assert Recommender.load(bundles / served).bundle.catalogue.row_of("new-1")
    Recommender.load(bundles / "current")


def test_disk_full_ends_with_74_and_the_next_run_goes_on(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    config, workspace = copy_of(shop, tmp_path / "files"), tmp_path / "run"

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    script = "from pipelines.cli.main import app; app()"
    command = [sys.executable, "-c", script, "run", "-c", str(config), "-w", str(workspace), "-q"]
    result = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=small_files_only, env=os.environ
    )
    assert result.returncode == 74, result.stderr
    assert "disk full" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (workspace / "bundles").exists()
    more = ("--until", "train_two_tower", *QUICK)
    assert recsys("run", "-c", config, "-w", workspace, "-q", *more).exit_code == 0


def test_corrupt_parquet_is_told_in_a_sentence(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    config = copy_of(shop, tmp_path / "files")
    pl.read_csv(config.parent / "events.csv").write_parquet(config.parent / "events.parquet")
    whole = (config.parent / "events.parquet").read_bytes()
    (config.parent / "events.parquet").write_bytes(whole[: len(whole) // 2])
    config.write_text(config.read_text().replace("events.csv", "events.parquet"))
    result = recsys("run", "-c", config, "-w", tmp_path / "run", "-q")
    assert result.exit_code == 2, result.output
    assert "events.parquet" in " ".join(result.output.split())


def test_training_that_does_not_stay_finite_ends_with_70(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    config = copy_of(shop, tmp_path / "files")
    settings = ["--set", "two_tower_training.schedule.learning_rate=1e38", "--set"]
    settings.append("two_tower_training.max_grad_norm=1e30")
    result = recsys("run", "-c", config, "-w", tmp_path / "run", "-q", *settings)
    assert result.exit_code == 70, result.output
    assert "not finite" in " ".join(result.output.split())
    assert not (tmp_path / "run/bundles").exists()
