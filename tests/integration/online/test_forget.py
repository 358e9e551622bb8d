"""Somebody who is forgotten leaves no trace in the next run, whatever the raw files hold."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from pipelines.engine.forgotten import read_list
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.recommend import Recommender
from serving.schemas import Request
from tests.features.test_forget_list import holds
from tests.integration.copies import Recsys
from tests.integration.online.test_online_events import FAST
from tests.recsys.testing.synthetic import World

PERSON = "ann.of.somewhere"
LINES = (
    'users = "users.csv"\nonline_events = "sqlite:run/online"\n[features]\ncontext_features = []'
)
NOW = 1_760_000_000_000


def rename(path: Path, before: str) -> None:
    lines = path.read_text().splitlines()
    changed = [
        ",".join(PERSON if cell == before else cell for cell in line.split(",")) for line in lines
    ]
    path.write_text("\n".join(changed) + "\n")


@pytest.fixture(scope="module")
def forgotten(
    world: World,
    write_world: Callable[..., Path],
    recsys: Recsys,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str], str]:
    """Run, forget a person, run again; the folder, its bundles in order, and what was printed."""
    folder = tmp_path_factory.mktemp("forget")
    config = write_world(folder, world, FAST.format(line=LINES))
    for name in ("events.csv", "users.csv"):
        rename(folder / name, world.user_ids.tolist()[0])
    store = SqliteStore(folder / "run" / "online")
    item = next(iter(world.catalogue.item_ids))
    for number, user in enumerate((PERSON, "visitor 7", "visitor 7")):
        at = NOW + number
        store.add_events([Event(f"{number}", user, item, "click", at, at)])
    store.close()
    bundles = []
    for step in ("run", "forget", "run"):
        if step == "run":
            result = recsys("run", config, "--set", f"workspace={folder / 'run'}", "-q")
            bundles.append((folder / "run/bundles/current").resolve().name)
        else:
            result = recsys(
                "data", "forget", config, PERSON, "--set", f"workspace={folder / 'run'}"
            )
            said = result.stdout
        assert result.exit_code == 0, result.output
    return folder, bundles, said


def test_the_next_run_has_no_trace_of_them(forgotten: tuple[Path, list[str], str]) -> None:
    folder, (before, after), _ = forgotten
    assert before != after
    version = before.removeprefix("bundle-")
    # What was published stays, and what it was made from, until it is collected.
    stays = (f"bundles/{before}/", f"bundles/answers-{version}.parquet", f"released/{version}/")
    left = [name for name in holds(folder / "run", PERSON) if not name.startswith(stays)]
    assert left == []
    assert holds(folder / "run/bundles" / before, PERSON) != []


def test_the_new_bundle_does_not_know_them_and_its_report_counts_them(
    forgotten: tuple[Path, list[str], str],
) -> None:
    folder, _, _ = forgotten
    report = json.loads((folder / "run/build_features/report.json").read_text())
    in_file = (folder / "events.csv").read_text().count(PERSON)
    assert report["forgotten"] == {"events": in_file, "users": 1}
    assert report["filtered"]["user was forgotten"] == in_file > 1
    recommender = Recommender.load(folder / "run/bundles/current")
    for user, is_unknown in ((PERSON, True), ("visitor 7", False)):
        found = recommender.answer(Request.model_validate({"user_id": user, "k": 3}))
        assert ("unknown_user" in [one.code for one in found.degraded]) == is_unknown


def test_it_says_what_went_and_what_still_holds_them(
    forgotten: tuple[Path, list[str], str],
) -> None:
    folder, (before, _), said = forgotten
    in_file = (folder / "events.csv").read_text().count(PERSON)
    assert "1 user forgotten" in said
    assert "removed 1 rows: events of the online store" in said
    assert f"removed 1 rows: {folder / 'run/online_events'}" in said
    assert f"still held: {in_file} rows: {folder / 'events.csv'}" in said
    assert f"still held: 1 rows: {folder / 'users.csv'}" in said
    assert f"still held: {folder / 'run/bundles' / before}" in said
    assert "the next recsys run makes it without them" in said
    assert "no online store" not in said
    # The list names nobody, and whoever has it without its keys cannot try ids.
    text = (folder / "run/forgotten.json").read_text()
    assert PERSON not in text
    assert hashlib.sha256(PERSON.encode()).hexdigest() not in text
    found = read_list(folder / "run/forgotten.json")
    # Under the key of the workspace and, since the next run, under that of the store.
    assert sorted(found.moments) == sorted(found.keys.hashes(PERSON)[:2])


def test_a_damaged_list_stops_a_run(
    forgotten: tuple[Path, list[str], str], recsys: Recsys, tmp_path: Path
) -> None:
    folder, _, _ = forgotten
    (tmp_path / "forgotten.json").write_text('{"users": {')
    given = f"data.forgotten={json.dumps(str(tmp_path / 'forgotten.json'))}"
    result = recsys(
        *(
            "run",
            folder / "shop.toml",
            "--set",
            f"workspace={tmp_path / 'run'}",
            "-q",
            "--set",
            given,
        )
    )
    assert result.exit_code == 2
    assert "is no list of forgotten users" in result.output


def test_who_the_store_has_forgotten_is_on_the_list_of_the_next_run(
    forgotten: tuple[Path, list[str], str], recsys: Recsys, tmp_path: Path
) -> None:
    folder, _, _ = forgotten
    shutil.copytree(folder, tmp_path / "shop")
    store = SqliteStore(tmp_path / "shop/run/online")
    store.forget("visitor 7", NOW + 1_000)
    store.close()
    result = recsys(
        *("run", tmp_path / "shop/shop.toml", "--set", f"workspace={tmp_path / 'shop/run'}", "-q"),
        *("--until", "build_features"),
    )
    assert result.exit_code == 0, result.output
    found = read_list(tmp_path / "shop/run/forgotten.json")
    assert found.moment("visitor 7") == NOW + 1_000
    assert found.moment(PERSON) is not None
    users = tmp_path / "shop/run/build_features/vocabularies/users.parquet"
    assert "visitor 7" not in pl.read_parquet(users)["id"].to_list()
