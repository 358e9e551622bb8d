"""Runs that are repeated, spoilt or starved."""

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from pipelines.engine.decisions import read_decisions
from pipelines.stages.list import STAGES
from serving.recommend import Recommender
from tests.integration.copies import Recsys, copied, options, run, run_well
from tests.recsys.testing.synthetic import World

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


def test_two_runs_give_equal_bytes(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    again = copied(shop, tmp_path, ())
    run_well(recsys, again)
    first, second = digests(shop), digests(again)
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
    workspace = copied(shop, tmp_path)
    champion = (workspace / "bundles/current").readlink()
    before = Recommender.load(workspace / "bundles/current").recommend(world.users[:3], k=5)

    spoil(tmp_path / "events.csv")
    result = run(recsys, workspace, *QUICK)
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
    run_well(recsys, workspace, *QUICK, *lenient)
    assert (workspace / "bundles/current").readlink() != champion
    released = read_decisions(workspace / "bundles", None)[0][-1].decision
    assert released.outcome == "released"


def test_deleted_bundle_is_released_again(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    workspace = copied(shop, tmp_path)
    before = digests(workspace)
    shutil.rmtree((workspace / "bundles/current").resolve())
    assert f"1 stages run, {len(STAGES) - 1} skipped" in run_well(recsys, workspace)
    assert digests(workspace) == before


class KilledError(BaseException):
    """Ends a run where a kill would: nothing catches it."""


@pytest.fixture
def appended(shop: Path, recsys: Recsys, tmp_path: Path) -> Path:
    """A workspace whose bundle has an item appended to it."""
    workspace = copied(shop, tmp_path)
    (tmp_path / "new.csv").write_text("item_id,title\nnew-1,A new one\n")
    result = recsys("release", "append", workspace, tmp_path / "new.csv")
    assert result.exit_code == 0, result.output
    return workspace


def test_released_again_by_force_nothing_that_is_served_is_removed_or_rewritten(
    appended: Path, recsys: Recsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = appended / "bundles"
    before, served = digests(bundles), (bundles / "current").readlink()
    again = (recsys, appended, "--force", "release")

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.publishing.write_release.write_bundle", kill)
        with pytest.raises(KilledError):
            run(*again)
    assert (bundles / "current").readlink() == served
    assert Recommender.load(bundles / "current").bundle.version.endswith("+1")

    run_well(*again)
    assert digests(bundles).items() >= before.items()
    assert Recommender.load(bundles / served).bundle.catalogue.row_of("new-1")
    Recommender.load(bundles / "current")


def test_disk_full_ends_with_74_and_the_next_run_goes_on(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, ())
    config = tmp_path / "shop.toml"

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    script = "from pipelines.cli.main import app; app()"
    command = [sys.executable, "-c", script, "run", str(config), "-q"]
    command += ["--set", f"workspace={workspace}"]
    result = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=small_files_only, env=os.environ
    )
    assert result.returncode == 74, result.stderr
    assert "disk full" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (workspace / "bundles").exists()
    more = ("--until", "train_two_tower", *QUICK)
    run_well(recsys, workspace, *more)


def test_corrupt_parquet_is_told_in_a_sentence(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    workspace, events = copied(shop, tmp_path, ()), tmp_path / "events.parquet"
    pl.read_csv(tmp_path / "events.csv").write_parquet(events)
    events.write_bytes(events.read_bytes()[: events.stat().st_size // 2])
    config = tmp_path / "shop.toml"
    config.write_text(config.read_text().replace("events.csv", "events.parquet"))
    result = run(recsys, workspace)
    assert result.exit_code == 2, result.output
    assert "events.parquet" in " ".join(result.output.split())


def test_training_that_does_not_stay_finite_ends_with_70(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    settings = ("schedule.learning_rate=1e38", "max_grad_norm=1e30")
    more = options("--set", (f"two_tower_training.{one}" for one in settings))
    result = run(recsys, copied(shop, tmp_path, ()), *more)
    assert result.exit_code == 70, result.output
    assert "not finite" in " ".join(result.output.split())
    assert not (tmp_path / "run/bundles").exists()
