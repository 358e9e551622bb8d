"""What a stranger meets on the command line: faults told in a sentence, with their exit codes."""

import os
from pathlib import Path

import pytest
from click.testing import Result

from pipelines.engine.workspace import Workspace
from pipelines.stages.list import STAGES
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World


def told(result: Result) -> str:
    """Return all that was printed, line breaks of wrapping undone."""
    return " ".join(result.output.split())


def shop_with(folder: Path, shop: Path, settings: str) -> Path:
    """Write a TOML beside copies of the shop's files."""
    folder.mkdir(exist_ok=True)
    for name in ("events.csv", "items.csv", "users.csv"):
        (folder / name).write_bytes((shop.parent / name).read_bytes())
    path = folder / "shop.toml"
    path.write_text(settings)
    return path


def test_unchanged_run_is_skipped_whole(recsys: Recsys, shop: Path) -> None:
    result = recsys("run", shop.parent / "shop.toml", "--set", f"workspace={shop}")
    assert result.exit_code == 0, result.output
    assert f"0 stages run, {len(STAGES)} skipped" in told(result)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[data]\nevnts = 'events.csv'", "unknown key 'data.evnts'; did you mean 'data.events'?"),
        ("[two_tower]\nembedding_dim = '8'", "two_tower.embedding_dim = '8': Input should be a"),
        (
            "[two_tower_training]\nbatch_size = 0",
            "two_tower_training: batch_size must be > 0, got 0",
        ),
        ("preset = 'shp'", "no preset 'shp'; did you mean 'shop'?"),
        ("seed = 1", "no data: set data.events"),
        ("[data]\nevents = 'event.csv'", "there is no file"),
        ("[data]\ndataset = 'movielens'", "did you mean 'movielens-1"),
        (
            "[data]\nevents = 'events.csv'\ncolumns = {user_id = 'user'}",
            "has no column 'user' (nearest: 'user_id'",
        ),
        (
            "[data]\nevents = 'events.csv'\nitems = 'items.csv'\nitem_columns = {title = 'titel'}",
            "no column 'titel'",
        ),
        ("[data]\nevents = 'users.csv'", "users.csv has no column 'item_id'"),
    ],
)
def test_faults_in_the_configuration_are_told_in_a_sentence(
    recsys: Recsys, shop: Path, tmp_path: Path, settings: str, message: str
) -> None:
    path = shop_with(tmp_path / "faulty", shop, settings)
    result = recsys(
        "run", path, "--set", f"workspace={tmp_path / 'run'}", "--until", "build_features"
    )
    assert result.exit_code == 2, result.output
    assert message in told(result)
    assert "Traceback" not in result.output


def test_missing_configuration_offers_the_nearest(recsys: Recsys, shop: Path) -> None:
    result = recsys("run", shop.parent / "shp.toml")
    assert result.exit_code == 2
    assert "shop.toml?" in told(result)


def test_run_without_anything_says_what_to_give(recsys: Recsys) -> None:
    result = recsys("run")
    assert result.exit_code == 2
    assert "name a run: shop.toml" in told(result)


def test_single_override_is_checked_too(recsys: Recsys, shop: Path) -> None:
    result = recsys("run", shop.parent / "shop.toml", "--set", "two_tower.embeding_dim=8")
    assert result.exit_code == 2
    assert "did you mean 'two_tower.embedding_dim'?" in told(result)


def test_unknown_stage_offers_the_nearest(recsys: Recsys, shop: Path) -> None:
    result = recsys("run", shop.parent / "shop.toml", "--until", "evalute")
    assert result.exit_code == 2
    assert "did you mean 'evaluate'?" in told(result)


def test_second_run_on_a_workspace_ends_with_75(recsys: Recsys, shop: Path) -> None:
    with Workspace(shop).lock():
        result = recsys("run", shop.parent / "shop.toml", "--set", f"workspace={shop}")
    assert result.exit_code == 75
    assert f"process {os.getpid()}" in told(result)


@pytest.mark.parametrize("key", ["workspace", "bundles"])
def test_folder_that_cannot_be_written_is_told_before_anything_runs(
    recsys: Recsys, shop: Path, tmp_path: Path, key: str
) -> None:
    (tmp_path / "file").write_text("")
    blocked = tmp_path / "file" / "inside"
    workspace = blocked if key == "workspace" else tmp_path / "run"
    options = ["--set", f"release.bundles={blocked}"] if key == "bundles" else []
    result = recsys("run", shop.parent / "shop.toml", "--set", f"workspace={workspace}", *options)
    assert result.exit_code == 2, result.output
    assert "cannot write to" in told(result)
    assert key in told(result)
    assert not (tmp_path / "run" / "build_features").exists()


def test_no_bundle_says_how_to_make_one(recsys: Recsys, tmp_path: Path) -> None:
    result = recsys("recommend", tmp_path, "--user", "1")
    assert result.exit_code == 2
    assert "recsys demo" in told(result)


def test_too_long_a_list_is_refused_with_its_limit(recsys: Recsys, shop: Path) -> None:
    result = recsys("recommend", shop, "--user", "user-1", "--k", "100000")
    assert result.exit_code == 2
    assert "k: Input should be less than or equal to" in told(result)


def test_list_longer_than_the_catalogue_holds_what_there_is(
    recsys: Recsys, shop: Path, world: World
) -> None:
    result = recsys("recommend", shop, "--user", world.users[0], "--k", 500)
    assert result.exit_code == 0, result.output
    assert "short_list" in told(result)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,title\n1,a\n", "its columns are id, title. Name the right one for 'item_id'"),
        ("item_id,title\nx,a\n,b\n", "row 1: item_id is empty"),
        ("item_id,title\nx,a\nx,b\n", "names item_id 'x' more than once"),
    ],
)
def test_faulty_new_items_are_named(
    recsys: Recsys, shop: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "new.csv").write_text(text)
    result = recsys("release", "append", shop, tmp_path / "new.csv")
    assert result.exit_code == 2
    assert message in told(result)


def test_data_commands(recsys: Recsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "movielens-100k" in recsys("data", "list").output
    unknown = recsys("data", "fetch", "amazon-beuty")
    assert unknown.exit_code == 2
    assert "did you mean 'amazon-beauty'?" in told(unknown)
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path))
    nowhere = recsys("data", "fetch", "amazon-toys")
    assert nowhere.exit_code == 2
    assert "RECSYS_DATA_MIRROR" in told(nowhere)
