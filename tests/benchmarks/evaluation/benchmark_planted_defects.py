"""Does the release gate refuse 20 planted defects, and does it let 20 harmless changes pass.

A small shop (`tests/year/world.py`) is trained and released by ``recsys run``. Each case copies
that workspace, changes the input, the settings, or what a stage hands to the release, runs again
and reads the decision. A retrain takes about half a minute on one core, all cases 20 minutes.

    python -m tests.benchmarks.evaluation.benchmark_planted_defects
    python -m tests.benchmarks.evaluation.benchmark_planted_defects --only "time-zone error"
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.stages import release as stage
from recsys.evaluation.slices import UserActivitySlices
from serving.recommend import Recommender
from tests.benchmarks.harness import Row, command_line, write_results
from tests.pipelines.publishing.gate import planted
from tests.year.world import World, WorldConfig

SETTINGS = """
preset = "shop"
auto.enabled = false
device = "cpu"
[data]
events = "events.csv"
items = "items.csv"
users = "users.csv"
[features]
user_columns = ["age", "country"]
[content]
encoder = "hash"
[two_tower]
embedding_dim = 16
hidden_dim = 32
max_history = 20
num_uniform_negatives = 300
backend = "torch"
[two_tower_training]
batch_size = 256
max_epochs = 6.0
[sequence]
embedding_dim = 16
hidden_dim = 32
max_length = 20
backend = "torch"
[sequence_training]
enabled = true
batch_size = 64
max_epochs = 4.0
[ranker_training]
enabled = true
[release]
min_compared = 40
[tracking]
enabled = false
"""
DAYS, ITEMS, USERS = 28, 160, 400
MANY_USERS = 3_600
"""Of the shop in which many users are new, as is a quarter of the held-out items."""
EVENTS = {USERS: 400, MANY_USERS: 960}
"""A day."""
Change = Callable[[Path], None]
MAX_REFUSED = 1
OTHER_SEED = ("seed=7",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One change of a run."""

    name: str
    defect: bool
    files: Change | None = None
    """Changes the raw files, or what lies in the workspace, in a folder of the case."""
    settings: tuple[str, ...] = ()
    plant: planted.Plant | None = None
    """Changes the parts of the bundle."""
    around: Callable[[], Any] | None = None
    """Context manager around the run."""
    num_users: int = USERS
    """Which shop it is planted into."""

    @property
    def release_alone(self) -> bool:
        """Whether it takes a challenger that was trained already, from another seed."""
        alone = (None, differing_parity, champion_of_new_items)
        return self.defect and self.files in alone and not self.settings


def write_files(folder: Path, num_users: int = USERS) -> None:
    """Write the raw files of a shop."""
    days = list(
        World(WorldConfig(days=DAYS, users=num_users, items=ITEMS, events=EVENTS[num_users])).days()
    )
    events = pl.concat([day.events for day in days]).drop("session_id")
    items = days[-1].items.with_columns(pl.col("categories").list.join("|"))
    if num_users == MANY_USERS:
        events, items = with_new_items(events, items)
    write_events(folder, events)
    items.drop("available_from").write_csv(folder / "items.csv")
    days[-1].users.write_csv(folder / "users.csv")
    (folder / "shop.toml").write_text(SETTINGS)


def with_new_items(events: pl.DataFrame, items: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Let every fourth user's last event be on a new item, described as the one it replaces."""
    events = events.sort("event_time")
    is_last = pl.int_range(pl.len()).over("user_id") == pl.len().over("user_id") - 1
    is_chosen = pl.col("user_id").hash(seed=0) % 4 == 0
    new = pl.when(is_last & is_chosen).then("new-" + pl.col("item_id")).otherwise("item_id")
    twins = items.with_columns(item_id="new-" + pl.col("item_id"))
    return events.with_columns(item_id=new), pl.concat([items, twins])


def write_events(folder: Path, events: pl.DataFrame) -> None:
    if events.schema["event_time"] != pl.String:
        events = events.with_columns(pl.col("event_time").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    events.write_csv(folder / "events.csv")


def read_events(folder: Path) -> pl.DataFrame:
    return pl.read_csv(folder / "events.csv").with_columns(
        pl.col("event_time").str.to_datetime(time_zone="UTC")
    )


def on_events(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Change:
    return lambda folder: write_events(folder, change(read_events(folder)))


def on_table(name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Change:
    def changed(folder: Path) -> None:
        change(pl.read_csv(folder / name)).write_csv(folder / name)

    return changed


def half_the_catalogue(folder: Path) -> None:
    items = pl.read_csv(folder / "items.csv")
    kept = items.head(len(items) // 2)
    kept.write_csv(folder / "items.csv")
    write_events(folder, read_events(folder).join(kept.select("item_id"), on="item_id", how="semi"))


def copied_day(events: pl.DataFrame) -> pl.DataFrame:
    """The last third of the log is delivered a second time, dated one day later."""
    newest = events["event_time"].max()
    late = events.filter(pl.col("event_time") > newest - pl.duration(days=DAYS // 3))
    moved = late.with_columns(pl.col("event_time") + pl.duration(days=1))
    return pl.concat([events, moved]).sort("event_time")


def leaked_feature(folder: Path) -> None:
    """A column of the users is what each takes last."""
    last = read_events(folder).sort("event_time").group_by("user_id").last()
    users = pl.read_csv(folder / "users.csv").join(
        last.select("user_id", segment="item_id"), on="user_id", how="left"
    )
    users.write_csv(folder / "users.csv")


def lost(kind: str) -> Callable[[], Any]:
    """No longer find held-out items of a slice."""

    @contextmanager
    def losing() -> Iterator[None]:
        sound = stage.answers

        def answers(context: Any, metrics: Any, inputs: Any) -> pl.DataFrame | None:
            found = sound(context, metrics, inputs)
            assert found is not None
            inside = in_slice(kind, inputs.item_counts("train"))
            return found.with_columns(rank=pl.when(inside).then(None).otherwise(pl.col("rank")))

        with mock.patch.object(stage, "answers", answers):
            yield

    return losing


def in_slice(kind: str, counts: Any) -> pl.Expr:
    """Select the answers of a slice, by the events of each item row."""
    if kind == "new users":
        return pl.col("place") <= UserActivitySlices().new_max_events
    order = counts[1:].argsort(descending=True) + 1
    share = counts[order].cumsum(0) / counts.sum()
    known = counts[order] > 0
    rows = {
        "head": order[share < 0.5],
        "torso and tail": order[share >= 0.5],
        "tail": order[(share >= 0.9) & known],
        "cold items": order[~known],
    }[kind]
    return pl.col("item_row").is_in(rows.tolist())


@contextmanager
def domain_lost() -> Iterator[None]:
    """Lose the held-out items of one domain."""
    sound = stage.answers

    def answers(context: Any, metrics: Any, inputs: Any) -> pl.DataFrame | None:
        found = sound(context, metrics, inputs)
        items = pl.read_parquet(context.inputs["build_features"] / "items.parquet")
        toys = items.filter(pl.col("domain") == "toys")["item_row"].to_list()
        assert found is not None
        rank = pl.when(pl.col("item_row").is_in(toys)).then(None).otherwise(pl.col("rank"))
        return found.with_columns(rank=rank)

    with mock.patch.object(stage, "answers", answers):
        yield


@contextmanager
def slow() -> Iterator[None]:
    """Let the challenger take 60 ms more for each list."""
    sound = Recommender.answer

    def answer(self: Recommender, *arguments: Any, **named: Any) -> Any:
        if ".partial-" in str(self.bundle.directory):
            time.sleep(0.06)
        return sound(self, *arguments, **named)

    with mock.patch.object(Recommender, "answer", answer):
        yield


def differing_parity(folder: Path) -> None:
    path = folder / "run/parity/parity.json"
    path.parent.mkdir()
    served = (folder / "run/bundles/current").readlink().name.removeprefix("bundle-")
    document = {"bundle": served, "requests": 500, "recomputed": 500, "equal": 400}
    path.write_text(json.dumps({**document, "differences": [{"feature": "context.hour"}]}))


def champion_of_new_items(folder: Path) -> None:
    """Let the champion have found half of the new items, of which this shop's models find none."""
    path = next((folder / "run/bundles").glob("answers-*.parquet"))
    found = pl.read_parquet(path)
    is_new = pl.col("item_id").str.starts_with("new-")
    rank = (1 + pl.col("user_id").hash(seed=1) % 100).cast(found.schema["rank"])
    path.unlink()
    found.with_columns(rank=pl.when(is_new).then(rank).otherwise("rank")).write_parquet(path)


def shuffled(events: pl.DataFrame) -> pl.DataFrame:
    return events.with_columns(pl.col("item_id").shuffle(seed=1))


def moved(hours: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda events: events.with_columns(pl.col("event_time") + pl.duration(hours=hours))


def one_more_item(items: pl.DataFrame) -> pl.DataFrame:
    new = items.tail(1).with_columns(item_id=pl.lit("i99999"), title=pl.lit("a new thing"))
    return pl.concat([items, new])


def more_events(events: pl.DataFrame) -> pl.DataFrame:
    more = events.sample(fraction=0.01, seed=3).with_columns(
        pl.col("event_time") + pl.duration(seconds=3_601)
    )
    return pl.concat([events, more]).sort("event_time")


def one_more_day(events: pl.DataFrame) -> pl.DataFrame:
    days = list(
        World(WorldConfig(days=DAYS + 1, users=USERS, items=ITEMS, events=EVENTS[USERS])).days()
    )
    new = days[-1].events.select(events.columns)
    known = new.filter(pl.col("item_id").is_in(events["item_id"].unique().to_list()))
    return pl.concat([events, known.cast(events.schema)])


def renamed(items: pl.DataFrame) -> pl.DataFrame:
    return items.with_columns(pl.col("categories").str.replace("kind 3", "kind three"))


def corrected_titles(items: pl.DataFrame) -> pl.DataFrame:
    own = pl.col("item_id").str.ends_with("7")
    return items.with_columns(title=pl.when(own).then(pl.col("title") + "!").otherwise("title"))


def sample(seed: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.sample(fraction=1, shuffle=True, seed=seed)


def parts_case(name: str, plant: planted.Plant) -> Case:
    return Case(name=name, defect=True, plant=plant)


LEAK = ("features.user_columns=['age', 'segment']",)
SWAPPED = ("data.columns.user_id=item_id", "data.columns.item_id=user_id")
CASES = [
    Case(name="shuffled labels", defect=True, files=on_events(shuffled)),
    Case(name="leaked feature", defect=True, files=leaked_feature, settings=LEAK),
    Case(name="half the catalogue missing", defect=True, files=half_the_catalogue),
    Case(name="swapped columns", defect=True, settings=SWAPPED),
    Case(name="time-zone error", defect=True, files=on_events(moved(8))),
    Case(name="duplicated day", defect=True, files=on_events(copied_day)),
    Case(name="torso and tail lost", defect=True, around=lost("torso and tail")),
    Case(name="head lost", defect=True, around=lost("head")),
    *(
        Case(name=f"{kind} lost", defect=True, around=lost(kind), num_users=MANY_USERS)
        for kind in ("new users", "tail")
    ),
    Case(
        name="cold items lost",
        defect=True,
        files=champion_of_new_items,
        around=lost("cold items"),
        num_users=MANY_USERS,
    ),
    Case(name="domain lost", defect=True, around=domain_lost),
    Case(name="slow bundle", defect=True, around=slow),
    Case(name="serving differs from training", defect=True, files=differing_parity),
    parts_case("dead expert", planted.dead_expert),
    parts_case("miscalibrated ranker", planted.miscalibrated_ranker),
    parts_case("stale index", planted.stale_index),
    parts_case("collapsed codebook", planted.collapsed_codebook),
    parts_case("repeated semantic IDs", planted.repeated_ids),
    parts_case("exploding rows", planted.exploding_rows),
    parts_case("NaN weights", planted.nan_weights),
    parts_case("truncated file", planted.truncated_file),
    parts_case("wrong popularity", planted.wrong_popularity),
    parts_case("stale content vectors", planted.stale_content),
    parts_case("coverage collapse", planted.lists_for_nobody),
    parts_case("one category for all items", planted.one_category),
    *(
        Case(name=f"seed {seed}", defect=False, settings=(f"seed={seed}",))
        for seed in (1, 2, 3, 4, 5)
    ),
    Case(name="nothing, forced", defect=False, settings=("--force", "release")),
    Case(
        name="another thread count", defect=False, around=lambda: threads(2), settings=("seed=6",)
    ),
    Case(name="rows of events reordered", defect=False, files=on_events(sample(1))),
    Case(name="rows of items reordered", defect=False, files=on_table("items.csv", sample(2))),
    Case(name="rows of users reordered", defect=False, files=on_table("users.csv", sample(3))),
    Case(name="1% more events", defect=False, files=on_events(more_events)),
    Case(
        name="1% fewer events",
        defect=False,
        files=on_events(lambda table: table.sample(fraction=0.99, seed=4).sort("event_time")),
    ),
    Case(name="one more day", defect=False, files=on_events(one_more_day)),
    Case(name="one more item", defect=False, files=on_table("items.csv", one_more_item)),
    Case(name="a category renamed", defect=False, files=on_table("items.csv", renamed)),
    Case(name="titles corrected", defect=False, files=on_table("items.csv", corrected_titles)),
    Case(name="another batch size", defect=False, settings=("two_tower_training.batch_size=192",)),
    Case(name="one pass more", defect=False, settings=("sequence_training.max_epochs=5",)),
    Case(name="wider embeddings", defect=False, settings=("two_tower.embedding_dim=24",)),
    Case(
        name="a week of the oldest events dropped",
        defect=False,
        files=on_events(lambda table: table.filter(pl.col("event_time") > OLDEST)),
    ),
]
OLDEST = pl.datetime(2026, 1, 8, time_zone="UTC")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with another number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(folder: Path, settings: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the pipeline of a folder; return its exit code and output."""
    arguments = ["run", "-c", str(folder / "shop.toml"), "-w", str(folder / "run"), "-q"]
    for one in settings:
        arguments += [one] if one.startswith("--") or "=" not in one else ["--set", one]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def judged(case: Case, base: Path) -> tuple[bool, list[str]]:
    """Run a case; return whether it was refused, and by which checks."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "case"
        shutil.copytree(base, folder, symlinks=True)
        if case.files is not None:
            case.files(folder)
        settings = OTHER_SEED if case.release_alone else case.settings
        sound = stage.make_parts
        plant = case.plant or (lambda parts, _: parts)
        (Path(scratch) / "planted").mkdir()
        patched = mock.patch.object(
            stage, "make_parts", lambda *of: plant(sound(*of), Path(scratch) / "planted")
        )
        around = case.around() if case.around is not None else threads(1)
        with patched, around:
            code, output = run(folder, settings)
        if code not in (0, 3):
            raise SystemExit(f"{case.name} ended with code {code}:\n{output}")
        decisions = sorted((folder / "run/bundles/decisions").glob("*.json"))
        verdicts = json.loads(decisions[-1].read_text())["verdicts"]
        return code == 3, [one["name"] for one in verdicts if not one["passed"]]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="*", help="names of cases", default=None)
    parser.add_argument("--outcomes", type=Path, help="cases that are done; more are added")
    parser.add_argument("--note", default="", help="what the page has to say of this run")
    chosen = parser.parse_args()
    done: dict[str, list[str]] = {}
    if chosen.outcomes is not None and chosen.outcomes.exists():
        done = json.loads(chosen.outcomes.read_text())
    waiting = [case for case in CASES if case.name not in done]
    if chosen.only is not None:
        waiting = [case for case in waiting if case.name in chosen.only]
    if waiting:
        judge_all(waiting, done, chosen.outcomes)
    if all(case.name in done for case in CASES):
        write_table(done, chosen.note)


def judge_all(waiting: list[Case], done: dict[str, list[str]], outcomes: Path | None) -> None:
    """Train champion and challenger of a shop once, then run its cases; keep each outcome."""
    for num_users in sorted({case.num_users for case in waiting}):
        with tempfile.TemporaryDirectory() as scratch:
            base, trained = Path(scratch) / "base", Path(scratch) / "trained"
            train(base, trained, num_users)
            for case in waiting:
                if case.num_users != num_users:
                    continue
                begin = time.perf_counter()
                was_refused, names = judged(case, trained if case.release_alone else base)
                done[case.name] = names if was_refused else []
                if outcomes is not None:
                    outcomes.write_text(json.dumps(done, indent=1))
                seconds = time.perf_counter() - begin
                print(f"{case.name}: {outcome_of(done[case.name])} ({seconds:.0f} s)", flush=True)


def train(base: Path, trained: Path, num_users: int) -> None:
    """Release a champion, and train a challenger from another seed up to its release."""
    base.mkdir()
    write_files(base, num_users)
    begin = time.perf_counter()
    code, output = run(base)
    shutil.copytree(base, trained, symlinks=True)
    if code or run(trained, (*OTHER_SEED, "--until", "build_index"))[0]:
        raise SystemExit(output)
    print(f"champion and challenger: {time.perf_counter() - begin:.0f} s", flush=True)


def outcome_of(names: list[str]) -> str:
    return "refused: " + ", ".join(names) if names else "released"


def write_table(done: dict[str, list[str]], note: str) -> None:
    """Write the result of all cases, by the checks that refused each."""
    rows: list[Row] = []
    lines: dict[bool, list[str]] = {}
    for kind in (True, False):
        by_outcome: dict[str, list[str]] = {}
        for one in CASES:
            if one.defect == kind:
                by_outcome.setdefault(outcome_of(done[one.name]), []).append(one.name)
        lines[kind] = [f"| {', '.join(names)} | {why} |" for why, names in by_outcome.items()]
    refused = {
        kind: sum(bool(done[one.name]) for one in CASES if one.defect == kind)
        for kind in (True, False)
    }
    counts = {kind: sum(case.defect == kind for case in CASES) for kind in (True, False)}
    rows.append(
        Row(
            name="planted defects: refused",
            value=refused[True],
            unit=f"of {counts[True]}",
            at_least=counts[True],
        )
    )
    rows.append(
        Row(
            name="harmless changes: refused",
            value=refused[False],
            unit=f"of {counts[False]}",
            at_most=MAX_REFUSED,
        )
    )
    notes = "\n".join(
        [
            "| planted defect | decision |\n| --- | --- |",
            *lines[True],
            "\n| harmless change | decision |\n| --- | --- |",
            *lines[False],
            f"\n{note}" if note else "",
        ]
    )
    write_results("planted_defects", rows, notes=notes)


if __name__ == "__main__":
    main()
