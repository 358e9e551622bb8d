"""A day's increment: the served models continued, judged and released, or left as they are."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from features.forget_list import ForgetList, UserKeys
from pipelines.engine.forgotten import add_to_list
from pipelines.engine.history import read_history
from pipelines.engine.workspace import DailyState
from pipelines.partitions.ingest import ingest
from pipelines.presets.resolve import resolve, with_dataset
from pipelines.publishing.released import Released
from pipelines.update.policy import decide, why_full
from recsys.data.dataset import Sequences
from serving.bundle.manifest import read_manifest
from serving.recommend import Recommender
from serving.schemas import Request
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World, markov_world

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
NEW_ITEMS = 4
"""Items that nobody meets before the seventh day."""
EVENTS_PER_USER = 10
TOP = "release.min_gain_over_popularity = -1.0\n"
SETTINGS = """
[ranker_training]
enabled = true
min_found = 10
num_candidates = 15
num_hard = 5
num_random = 5
batch_size = 16
max_epochs = 2

[ranker]
embedding_dim = 8
num_experts = 2
hidden_dim = 8
head_dim = 8
tile_rows = 32
backend = "torch"

[updates]
min_held_out = 20
"""


def write_days(folder: Path, world: World) -> list[Path]:
    """Write the n-th event of each user on the n-th day; some items first come on day seven.

    What is done with those has a type of its own, which the first release does not know.
    """
    events = pl.DataFrame(
        {
            "user_id": world.user_ids.tolist(),
            "item_id": world.item_ids.tolist(),
            "event_type": world.event_types.tolist(),
        }
    ).with_columns(pl.int_range(pl.len()).over("user_id").alias("day"))
    late = sorted(set(world.catalogue.item_ids))[:NEW_ITEMS]
    folder.mkdir(parents=True)
    paths = []
    for day in range(EVENTS_PER_USER):
        part = events.filter(pl.col("day") == day)
        if day < 7:
            part = part.filter(~pl.col("item_id").is_in(late))
        new = pl.when(pl.col("item_id").is_in(late)).then(pl.lit("gift"))
        part = part.with_columns(event_type=new.otherwise("event_type"))
        begin = int((FIRST + timedelta(days=day)).timestamp())
        part = part.with_columns((begin + 60 * pl.int_range(pl.len())).alias("event_time"))
        path = folder / f"{FIRST + timedelta(days=day):%Y-%m-%d}.csv"
        part.drop("day").write_csv(path)
        paths.append(path)
    return paths


class Shop:
    """A copy of a shop that a full run has served seven days of."""

    def __init__(self, folder: Path, recsys: Recsys) -> None:
        self.folder, self._recsys = folder, recsys
        self.workspace = folder / "run"

    def day(self, number: int) -> Path:
        """Let a day arrive."""
        name = f"{FIRST + timedelta(days=number):%Y-%m-%d}.csv"
        return Path(shutil.copy(self.folder / "all" / name, self.folder / "events" / name))

    def update(self, *more: str, exit_code: int = 0) -> str:
        arguments = (self.folder / "shop.toml", "--set", f"workspace={self.workspace}", "-q", *more)
        result = self._recsys("update", *arguments)
        assert result.exit_code == exit_code, result.output
        return result.output

    @property
    def served(self) -> str:
        return (self.workspace / "bundles" / "current").readlink().name.removeprefix("bundle-")

    @property
    def released(self) -> Released:
        found = Released.read(self.workspace / "released" / self.served)
        assert found is not None
        return found

    def weights(self, version: str, model: str) -> dict[str, np.ndarray]:
        path = self.workspace / "released" / version / "refit" / model / f"{model}.safetensors"
        return {name: value.numpy() for name, value in load_file(path).items()}

    def set(self, text: str) -> None:
        with (self.folder / "shop.toml").open("a") as file:
            file.write(text)


@pytest.fixture
def shop(
    built_once: Callable[[str, Callable[[Path], None]], Path],
    write_world: Callable[..., Path],
    recsys: Recsys,
    tmp_path: Path,
) -> Shop:
    def build(folder: Path) -> None:
        world = markov_world(num_users=80, num_items=24, events_per_user=EVENTS_PER_USER)
        path = write_world(folder, world)
        text = path.read_text().replace('events = "events.csv"', 'partitions = "events"')
        text = text.replace('encoder = "hash"', 'encoder = "minilm+words"\ncolumns = ["price"]')
        path.write_text(TOP + text + SETTINGS)
        write_days(folder / "all", world)
        (folder / "events").mkdir()
        made = Shop(folder, recsys)
        for day in range(7):
            made.day(day)
        assert "nothing is served yet" in made.update()

    made = Shop(built_once("updated-shop", build), recsys)
    folder = shutil.copytree(made.folder, tmp_path / "shop", symlinks=True)
    return Shop(folder, recsys)


def read_since(shop: Shop) -> int:
    """Read from which second on events were new for the latest increment."""
    seen = json.loads((shop.workspace / "update/build_features/new_since.json").read_text())
    return int(seen["since"])


def read_items(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "build_features/vocabularies/items.parquet")


def read_sequences(shop: Shop) -> Sequences:
    return Sequences.load(shop.workspace / "update/build_features/sequences/given")


def read_fits(shop: Shop) -> object:
    content = read_manifest(shop.workspace / "bundles" / f"bundle-{shop.served}")[0].content
    assert content is not None
    assert len(content.columns) == 1
    return content.columns, content.name


def check_first_increment(shop: Shop, items: dict[str, np.ndarray]) -> list[int]:
    """Check what a day's increment trained, served and held out; returns the held-out users."""
    released = shop.released
    assert released.kind == "incremental"
    assert released.held_out_since is not None
    since = datetime.fromtimestamp(released.held_out_since, UTC)
    assert FIRST + timedelta(days=7) <= since < FIRST + timedelta(days=8)
    grown = shop.weights(shop.served, "two_tower")
    moved = [
        name
        for name, value in items.items()
        if value.ndim and not np.array_equal(value, grown[name][: len(value)])
    ]
    assert moved, "nothing was trained"
    recommender = Recommender.load(shop.workspace / "bundles" / "current")
    world_items = set(pl.read_csv(shop.folder / "items.csv")["item_id"])
    assert set(recommender.bundle.catalogue.item_ids) - {""} == world_items
    assert list(recommender.bundle.event_types) == ["click", "purchase", "gift"]
    assert len(recommender.make(Request(user_id="u1", k=5)).reply.items) == 5
    held_out: list[int] = np.load(
        shop.workspace / "released" / shop.served / "held_out.npy"
    ).tolist()
    assert 10 <= len(held_out) <= 40
    sequences = read_sequences(shop)
    left_out = np.asarray(sequences.offsets[1:]) - np.asarray(sequences.train_end)
    assert left_out.sum() == len(held_out)
    return held_out


def forget_two(shop: Shop, recsys: Recsys) -> list[str]:
    """Forget two users, one of them on the sixth day; returns the ids that the next bundle has."""
    vocabulary = shop.workspace / "build_features/vocabularies/users.parquet"
    people = pl.read_parquet(vocabulary)["id"].to_list()
    person, other = people[4], people[9]
    result = recsys(
        "data", "forget", shop.folder / "shop.toml", person, "--set", f"workspace={shop.workspace}"
    )
    assert result.exit_code == 0, result.output
    assert "partitions of the workspace" in result.output
    assert f"still held: 1 rows: {shop.folder / 'events/2026-01-02.csv'}" in result.output
    moment = int(1_000 * (FIRST + timedelta(days=5)).timestamp())
    add_to_list(
        DailyState(shop.workspace).forgotten, ForgetList.of([other], moment, UserKeys((b"k" * 16,)))
    )
    # Since then the other one has come back.
    return [*people[:4], "(forgotten 5)", *people[5:9], "(forgotten 10)", *people[10:], other]


def test_days_are_continued_and_served_without_who_was_forgotten(
    shop: Shop, recsys: Recsys
) -> None:
    first, items, columns = shop.served, shop.weights(shop.served, "two_tower"), read_fits(shop)
    rows = [read_items(shop.workspace)]
    assert shop.released.kind == "full"
    assert "no new events" in shop.update()
    shop.day(7)
    assert "incremental: new events" in shop.update()
    assert shop.served != first
    held_out, sequences = check_first_increment(shop, items), read_sequences(shop)
    rows.append(read_items(shop.workspace / "update"))

    named = forget_two(shop, recsys)
    shop.day(8)
    assert "incremental" in shop.update()
    users = Recommender.load(shop.workspace / "bundles/current").bundle.users
    assert list(users.user_ids)[1:] == named
    assert [len(users.history(row)) for row in (5, 10, len(named))] == [0, 0, 4]
    # Held-out users are trained on by the next increment, and no row moves.
    later, kept = read_sequences(shop), [row for row in held_out if row not in (4, 5, 9, 10)]
    visible = np.asarray(later.train_end) - np.asarray(later.offsets[:-1])
    before = np.asarray(sequences.offsets[1:]) - np.asarray(sequences.offsets[:-1])
    assert (visible[kept] >= before[kept]).all()
    rows.append(read_items(shop.workspace / "update"))
    assert rows[1].head(rows[0].height).equals(rows[0])
    assert rows[2].head(rows[1].height).equals(rows[1])
    assert rows[1].height == rows[0].height + NEW_ITEMS
    # New items change no fit of words or columns that the continued weights were trained with.
    assert read_fits(shop) == columns


def test_a_corrected_day_is_trained_on_and_a_rollback_is_continued(
    shop: Shop, recsys: Recsys
) -> None:
    first = shop.served
    shop.day(7)
    path = shop.folder / "events" / "2026-01-06.csv"
    pl.read_csv(path).head(30).write_csv(path)
    shop.update()
    assert read_since(shop) == int((FIRST + timedelta(days=5)).timestamp())
    assert "2026-01-06 was corrected" in read_history(shop.workspace)[-1].reasons
    result = recsys("release", "rollback", shop.workspace)
    assert result.exit_code == 0, result.output
    assert shop.served == first
    shop.day(8)
    assert f"new events since {first}" in shop.update()


def test_weights_of_the_last_full_run_are_continued_where_that_is_set(shop: Shop) -> None:
    full = shop.served
    shop.day(7)
    shop.update("--set", "backtest.continue_from=full")
    first = shop.workspace / "released" / shop.served / "refit" / "sequence"
    weights = load_file(first / "sequence.safetensors")
    (first / "sequence.safetensors").unlink()
    save_file(
        {name: value * torch.nan for name, value in weights.items()}, first / "sequence.safetensors"
    )
    # A day without known users is released too; nobody was held out of it.
    path = shop.day(8)
    day = pl.read_csv(path)
    day.with_columns(("new-" + pl.col("user_id")).alias("user_id")).write_csv(path)
    more = ("--set", "release.min_gain_over_popularity=0.0")
    shop.update("--set", "backtest.continue_from=full", *more)
    assert (shop.released.kind, shop.released.full_version) == ("incremental", full)
    manifest = json.loads((shop.workspace / "bundles/current/manifest.json").read_text())
    assert manifest["metrics"] == {}
    # The first increment's weights are no numbers, so nothing can have gone on from them.
    second = shop.weights(shop.served, "sequence")
    assert all(np.isfinite(value).all() for value in second.values())


def test_counts_alone_leave_trained_weights_and_start_no_full_run(shop: Shop) -> None:
    before = shop.weights(shop.served, "sequence")
    until = shop.released.until
    shop.day(7)
    output = shop.update("--counts-only", "--set", "two_tower.dropout=0.2")
    assert "takes recsys update without --counts-only" in output
    shop.update("--counts-only")
    after = shop.weights(shop.served, "sequence")
    for name, value in before.items():
        if name.endswith(("item_counts", "neighbours", "neighbour_shares")):
            continue
        kept = after[name][: len(value)] if value.ndim else after[name]
        assert np.array_equal(value, kept), name
    # The next training sees what counts alone have seen.
    assert until is not None
    assert shop.released.until == until
    assert shop.released.new_since(shop.workspace) == until + 1
    shutil.rmtree(shop.workspace / "released")
    assert "nothing" in shop.update("--counts-only")


def test_a_refused_or_killed_increment_leaves_what_is_served_and_is_resumed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.stages import release as stage

    before, until = shop.served, shop.released.until
    assert until is not None
    shop.day(7)
    # Fewer held-out users than are compared show nothing about popularity.
    strict = ("--set", "release.min_gain_over_popularity=1000.0", "--set", "release.min_compared=9")
    shop.update(*strict, exit_code=3)
    assert shop.served == before
    line = read_history(shop.workspace)[-1]
    assert (line.outcome, line.exit_code) == ("refused", 3)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stage, "keep_released", killed)
        shop.update(exit_code=130)
    assert shop.served == before
    output = shop.update()
    assert f"new events since {before}" in output
    assert "1 stages run" in output
    assert shop.released.kind == "incremental"
    assert read_since(shop) == until + 1


def test_settings_policies_ages_and_alarms_decide(shop: Shop) -> None:
    shop.day(7)
    config = resolve(shop.folder / "shop.toml", workspace=shop.workspace)
    ingest(config)
    config = with_dataset(config)
    base = shop.released
    changed = replace(config, two_tower=replace(config.two_tower, dropout=0.2))
    found = decide(changed)
    assert found.kind == "full"
    assert found.reason == "settings changed since the last full run: two_tower"
    full = replace(config, updates=replace(config.updates, policy="full"))
    assert decide(full).reason == 'updates.policy = "full"'
    never = replace(config, updates=replace(config.updates, policy="never"))
    assert decide(never).kind == "nothing"
    assert why_full(config, base) is None
    old = replace(base, full_time=(datetime.now(UTC) - timedelta(days=8)).isoformat())
    assert why_full(config, old) == "the last full run is 8 days old, updates.full_every_days = 7"
    alarm = shop.workspace / "monitoring" / "monitor.json"
    alarm.parent.mkdir(exist_ok=True)
    raised = {"retrain": True, "reason": "prices moved"}
    alarm.write_text(json.dumps({**raised, "retrain_since": f"{datetime.now(UTC):%Y-%m-%d}"}))
    assert why_full(config, base) == "the monitor wants a full run: prices moved"
    # A full run has seen the days of an earlier alarm.
    alarm.write_text(json.dumps({**raised, "retrain_since": "2026-01-01"}))
    assert why_full(config, base) is None
