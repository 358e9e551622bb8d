"""A day's increment: the served models continued, judged and released, or left as they are."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file

from features.forget_list import ForgetList, UserKeys
from pipelines.engine.forgotten import LIST, add_to_list
from pipelines.engine.history import read_history
from pipelines.publishing.released import Released
from recsys.data.dataset import Sequences
from serving.bundle.manifest import read_manifest
from serving.recommend import Recommender
from serving.schemas import Request
from tests.recsys.testing.synthetic import World, markov_world

Recsys = Callable[..., Result]
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
    """Write the n-th event of each user on the n-th day; some items first come on day seven."""
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
        arguments = ("-c", self.folder / "shop.toml", "-w", self.workspace, "-q", *more)
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
        text = text.replace("[content]\n", '[content]\ncolumns = ["price"]\n')
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


def test_a_day_is_continued_judged_and_served(shop: Shop) -> None:
    before, items = shop.served, shop.weights(shop.served, "two_tower")
    assert shop.released.kind == "full"
    assert "no new events" in shop.update()
    shop.day(7)
    assert "incremental: new events" in shop.update()
    assert shop.served != before
    released = shop.released
    assert released.kind == "incremental"
    assert released.held_out_since is not None
    since = datetime.fromtimestamp(released.held_out_since, UTC)
    assert FIRST + timedelta(days=7) <= since < FIRST + timedelta(days=8)

    recommender = Recommender.load(shop.workspace / "bundles" / "current")
    known = set(recommender.bundle.catalogue.item_ids) - {""}
    world_items = set(pl.read_csv(shop.folder / "items.csv")["item_id"])
    assert known == world_items
    assert len(recommender.make(Request(user_id="u1", k=5)).reply.items) == 5

    grown = shop.weights(shop.served, "two_tower")
    trained = [
        name
        for name, value in items.items()
        if value.ndim and not np.array_equal(value, grown[name][: len(value)])
    ]
    assert trained, "nothing was trained"


def test_weights_of_the_last_full_run_are_continued_where_that_is_set(shop: Shop) -> None:
    full = shop.served
    shop.day(7)
    shop.update("--set", "backtest.continue_from=full")
    first = shop.workspace / "released" / shop.served / "refit" / "sequence"
    weights = load_file(first / "sequence.safetensors")
    (first / "sequence.safetensors").unlink()
    save_file(
        {name: value * torch.nan for name, value in weights.items()},
        first / "sequence.safetensors",
    )
    shop.day(8)
    shop.update("--set", "backtest.continue_from=full")
    assert shop.released.full_version == full
    # The first increment's weights are no numbers, so nothing can have gone on from them.
    second = shop.weights(shop.served, "sequence")
    assert all(np.isfinite(value).all() for value in second.values())


def test_rows_are_appended_and_never_moved(shop: Shop) -> None:
    rows = [pl.read_parquet(shop.workspace / "build_features/vocabularies/items.parquet")]
    first = read_manifest(shop.workspace / "bundles" / f"bundle-{shop.served}")[0].content
    for day in (7, 8):
        shop.day(day)
        shop.update()
        vocabulary = shop.workspace / "update/build_features/vocabularies/items.parquet"
        rows.append(pl.read_parquet(vocabulary))
    assert rows[1].head(rows[0].height).equals(rows[0])
    assert rows[2].head(rows[1].height).equals(rows[1])
    assert rows[1].height == rows[0].height + NEW_ITEMS
    # New prices move no edge of the encoding that the continued weights were trained with.
    grown = read_manifest(shop.workspace / "bundles" / f"bundle-{shop.served}")[0].content
    assert first is not None
    assert grown is not None
    assert len(first.columns) == 1
    assert grown.columns == first.columns


def test_an_increment_leaves_out_who_was_forgotten_and_moves_nobody(
    shop: Shop, recsys: Recsys
) -> None:
    people = pl.read_parquet(shop.workspace / "build_features/vocabularies/users.parquet")["id"]
    person, other = people[4], people[9]
    given = ("-c", shop.folder / "shop.toml", "-w", shop.workspace)
    result = recsys("users", "forget", person, *given)
    assert result.exit_code == 0, result.output
    assert "partitions of the workspace" in result.output
    assert f"still held: 1 rows: {shop.folder / 'events/2026-01-02.csv'}" in result.output
    # Another one was forgotten on the sixth day, and has come back since.
    moment = int(1_000 * (FIRST + timedelta(days=5)).timestamp())
    add_to_list(shop.workspace / LIST, ForgetList.of([other], moment, UserKeys((b"k" * 16,))))
    for day in (7, 8):
        shop.day(day)
        assert "incremental" in shop.update()
        users = Recommender.load(shop.workspace / "bundles/current").bundle.users
        named = [*people[:4], "(forgotten 5)", *people[5:9], "(forgotten 10)", *people[10:], other]
        assert list(users.user_ids)[1:] == named
        assert [len(users.history(row)) for row in (5, 10)] == [0, 0]
        assert len(users.history(len(named))) == day - 4


def test_held_out_users_are_trained_on_by_the_next_increment(shop: Shop) -> None:
    shop.day(7)
    shop.update()
    held_out = np.load(shop.workspace / "released" / shop.served / "held_out.npy")
    assert 10 <= len(held_out) <= 40
    features = shop.workspace / "update" / "build_features" / "sequences" / "given"
    sequences = Sequences.load(features)
    left_out = np.asarray(sequences.offsets[1:]) - np.asarray(sequences.train_end)
    assert left_out.sum() == len(held_out)
    shop.day(8)
    shop.update()
    later = Sequences.load(features)
    visible = np.asarray(later.train_end) - np.asarray(later.offsets[:-1])
    before = np.asarray(sequences.offsets[1:]) - np.asarray(sequences.offsets[:-1])
    assert (visible[held_out] >= before[held_out]).all()


def test_counts_alone_leave_trained_weights(shop: Shop) -> None:
    before = shop.weights(shop.served, "sequence")
    until = shop.released.until
    shop.day(7)
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
    shop.day(8)
    shop.update()
    seen = json.loads((shop.workspace / "update/build_features/new_since.json").read_text())
    assert seen["since"] == until + 1


def test_a_corrected_day_is_trained_on_from_its_beginning(shop: Shop) -> None:
    shop.day(7)
    shop.update()
    path = shop.folder / "events" / "2026-01-06.csv"
    pl.read_csv(path).head(30).write_csv(path)
    shop.update()
    seen = json.loads((shop.workspace / "update/build_features/new_since.json").read_text())
    assert seen["since"] == int((FIRST + timedelta(days=5)).timestamp())
    line = read_history(shop.workspace)[-1]
    assert "2026-01-06 was corrected" in line.reasons


def test_a_refused_increment_leaves_what_is_served_and_the_next_goes_on_from_there(
    shop: Shop,
) -> None:
    before, until = shop.served, shop.released.until
    assert until is not None
    shop.day(7)
    # Fewer held-out users than are compared show nothing about popularity.
    strict = ("--set", "release.min_gain_over_popularity=1000.0", "--set", "release.min_compared=9")
    shop.update(*strict, exit_code=3)
    assert shop.served == before
    line = read_history(shop.workspace)[-1]
    assert (line.outcome, line.exit_code) == ("refused", 3)
    shop.day(8)
    assert f"new events since {before}" in shop.update()
    seen = json.loads((shop.workspace / "update/build_features/new_since.json").read_text())
    assert seen["since"] == until + 1


def test_a_rollback_is_what_the_next_increment_continues(shop: Shop, recsys: Recsys) -> None:
    first = shop.served
    shop.day(7)
    shop.update()
    result = recsys("rollback", "--bundles", shop.workspace / "bundles")
    assert result.exit_code == 0, result.output
    assert shop.served == first
    shop.day(8)
    assert f"new events since {first}" in shop.update()


def test_changed_settings_call_for_a_full_run(shop: Shop) -> None:
    shop.day(7)
    more = ("--set", "two_tower.dropout=0.2", "--set", "release.max_drop_from_champion=1.0")
    output = shop.update(*more)
    assert "full: settings changed since the last full run: two_tower" in output
    assert shop.released.kind == "full"


def test_policies_ages_and_alarms_decide(shop: Shop) -> None:
    from dataclasses import replace

    from pipelines.partitions.ingest import ingest
    from pipelines.presets.resolve import resolve, with_dataset
    from pipelines.update.policy import decide, why_full

    shop.day(7)
    config = resolve(shop.folder / "shop.toml", workspace=shop.workspace)
    ingest(config)
    config = with_dataset(config)
    base = shop.released
    full = replace(config, updates=replace(config.updates, policy="full"))
    assert decide(full).reason == 'updates.policy = "full"'
    never = replace(config, updates=replace(config.updates, policy="never"))
    assert decide(never).kind == "nothing"
    assert why_full(config, base) is None
    old = replace(base, full_time=(datetime.now(UTC) - timedelta(days=8)).isoformat())
    assert why_full(config, old) == "the last full run is 8 days old, updates.full_every_days = 7"
    alarm = shop.workspace / "monitoring" / "monitor.json"
    alarm.parent.mkdir(exist_ok=True)
    now = datetime.now(UTC).isoformat()
    alarm.write_text(json.dumps({"time": now, "retrain": True, "reason": "prices moved"}))
    assert why_full(config, base) == "the monitor wants a full run: prices moved"
    # An alarm that an earlier full run answered counts no more.
    alarm.write_text(json.dumps({"time": "2026-01-01T00:00:00+00:00", "retrain": True}))
    assert why_full(config, base) is None


def test_counts_alone_start_no_full_run(shop: Shop) -> None:
    shop.day(7)
    output = shop.update("--counts-only", "--set", "two_tower.dropout=0.2")
    assert "takes recsys update without --counts-only" in output
    shutil.rmtree(shop.workspace / "released")
    assert "nothing" in shop.update("--counts-only")


def test_a_killed_increment_is_resumed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.stages import release as stage

    shop.day(7)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stage, "keep_released", killed)
        shop.update(exit_code=130)
    output = shop.update()
    assert "1 stages run" in output
    assert shop.released.kind == "incremental"


def test_a_day_without_known_users_is_released(shop: Shop) -> None:
    path = shop.day(7)
    day = pl.read_csv(path)
    day.with_columns(("new-" + pl.col("user_id")).alias("user_id")).write_csv(path)
    shop.update("--set", "release.min_gain_over_popularity=0.0")
    assert shop.released.kind == "incremental"
    manifest = json.loads((shop.workspace / "bundles/current/manifest.json").read_text())
    assert manifest["metrics"] == {}
    # The next full run is held against the last full one, not against this day.
    assert shop.released.full_version != shop.served
