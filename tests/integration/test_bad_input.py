"""Logs that are hardly logs: each is served, or refused before work starts with what is wrong."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result

from serving.recommend import Recommender
from serving.schemas import Request
from tests.integration.copies import Recsys

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
TINY = (
    "content.encoder=hash",
    "two_tower_training.max_epochs=1.0",
    "device=cpu",
    "tracking.enabled=false",
    "release.min_gain_over_popularity=-1",
)
TEXTS = (
    "Zitronentee", "thé au citron", "лимонный чай", "柠檬茶", "レモンティー", "레몬차",
    "شاي بالليمون", "תה לימון", "Τσάι με λεμόνι", "नींबू की चाय",
)  # fmt: skip
Row = tuple[object, ...]


def drawn(num_events: int, step: timedelta, *, users: int = 10, items: int = 12) -> list[Row]:
    """Events of users in turn, of items at random."""
    chance = random.Random(0)
    return [
        (f"u{n % users}", f"i{chance.randrange(items)}", START + n * step)
        for n in range(num_events)
    ]


HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Hard(NamedTuple):
    """A log that is served all the same, and what the run says of it."""

    rows: list[Row]
    says: str
    titles: Sequence[Row] = ()
    options: tuple[str, ...] = ()


BY_LAST = "Models are judged by each user's last two events, because "
SHORT = ("--budget", "20s")
SMALL = (
    "sequence.embedding_dim=16",
    "sequence_training.max_epochs=1.0",
    "ranker_training.enabled=false",
    "generative_training.enabled=false",
)
TIED = drawn(3_000, DAY, users=99, items=60)
HARD = {
    "one time": Hard(drawn(80, timedelta(0)), f"{BY_LAST}all events are of 1 days"),
    "one day": Hard(drawn(80, timedelta(minutes=1)), f"{BY_LAST}all events are of 1 days"),
    "ten events": Hard(
        [(f"u{n % 4}", f"i{n % 5}", START + n * DAY) for n in range(10)], "Nothing is trained"
    ),
    "repeats only": Hard(
        [(f"u{n % 10}", f"i{n % 10}", START + n * HOUR) for n in range(100)],
        "Lists may repeat the history: 100%",
    ),
    "three events in the last month": Hard(
        [*drawn(300, HOUR), *((f"u{n}", "i1", START + 75 * DAY) for n in range(3))],
        f"{BY_LAST}only ",
        options=SHORT,
    ),
    "ties by the thousand": Hard(
        [(*row[:2], START + (n // 1_000) * DAY) for n, row in enumerate(TIED)],
        f"{BY_LAST}all events are of 3 days",
        options=SHORT,
    ),
    "nine in ten items are cold": Hard(
        drawn(80, HOUR),
        "108 items of the catalogue have no event",
        titles=[(f"i{n}", f"{TEXTS[n % 10]} {n}") for n in range(120)],
        options=SHORT,
    ),
    "two hours for a thousand events": Hard(
        drawn(1_000, HOUR, users=60, items=40),
        "of 7,200 s: nothing else can be added",
        options=("--budget", "2h", *(part for one in SMALL for part in ("--set", one))),
    ),
}
UNMEASURED: dict[str, list[Row]] = {
    "an event a user": drawn(80, HOUR, users=80),
    "nothing in common": [(f"u{n}", f"i{n}", START + n * DAY) for n in range(10)],
}
REFUSED: dict[str, tuple[list[Row], str]] = {
    "one user": ([("u0", f"i{n}", START + n * DAY) for n in range(8)], "8 events are of one user"),
    "one item": ([(f"u{n % 6}", "i0", START + n * DAY) for n in range(18)], "of one item"),
    "one event": ([("u0", "i0", START)], "all 1 events are of one user"),
}  # fmt: skip


def write(path: Path, header: Sequence[str], rows: Sequence[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_log(folder: Path, rows: Sequence[Row]) -> Path:
    columns = ["customer", "sku", "ts", *(f"c{n}" for n in range(len(rows[0]) - 3))]
    return write(folder / "log.csv", columns, rows)


@pytest.fixture
def served(recsys: Recsys, tmp_path: Path) -> Callable[..., Result]:
    """Run the user's two commands on files, into the folder ``run`` beside them."""

    def run(*files: Path, options: Sequence[object] = ()) -> Result:
        target = tmp_path / "shop.toml"
        result = recsys("data", "init", *files, "--out", target)
        assert result.exit_code == 0, result.output
        settings = [part for one in TINY for part in ("--set", one)]
        return recsys(
            "run", target, "--set", f"workspace={tmp_path / 'run'}", "-q", *settings, *options
        )

    return run


def lists_of(folder: Path, users: Sequence[str] = ("u0", "nobody")) -> dict[str, list[str]]:
    """Ask what was released for five items of each user."""
    found = Recommender.load(folder / "run" / "bundles" / "current").recommend(list(users), k=5)
    return {user: found.filter(found["user_id"] == user)["item_id"].to_list() for user in users}


@pytest.mark.parametrize("name", HARD)
def test_a_log_of_little_information_is_served_and_the_run_says_what_it_is(
    name: str, served: Callable[..., Result], tmp_path: Path
) -> None:
    hard = HARD[name]
    files = [write_log(tmp_path, hard.rows)]
    if hard.titles:
        files.append(write(tmp_path / "items.csv", ["sku", "title"], hard.titles))
    result = served(*files, options=hard.options)
    assert result.exit_code == 0, result.output
    assert hard.says in " ".join(result.output.split())
    lists = lists_of(tmp_path)
    assert len(lists["nobody"]) == 5
    assert lists["u0"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_refused_before_anything_is_trained(
    name: str, served: Callable[..., Result], tmp_path: Path
) -> None:
    rows, why = REFUSED[name]
    result = served(write_log(tmp_path, rows))
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert not (tmp_path / "run" / "train_two_tower").exists()


@pytest.mark.parametrize("name", UNMEASURED)
def test_without_a_held_out_event_nothing_is_measured_and_the_run_says_so(
    name: str, served: Callable[..., Result], tmp_path: Path
) -> None:
    result = served(write_log(tmp_path, UNMEASURED[name]))
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "nothing was measured" in said
    assert "test: no user has a held-out event" in said
    metrics = json.loads((tmp_path / "run" / "evaluate" / "metrics.json").read_text())
    assert metrics == {"given": {"validation": {}, "test": {}}}
    blends = json.loads((tmp_path / "run" / "fit_blend" / "given" / "blends.json").read_text())
    assert blends["profiles"]["fast"]["served"] == "reciprocal_rank_fusion"
    assert "no user has a held-out event" in (tmp_path / "run/report/report.json").read_text()
    lists = lists_of(tmp_path)
    assert len(lists["u0"]) == len(lists["nobody"]) == 5


def test_a_thousand_columns_are_looked_through(
    served: Callable[..., Result], tmp_path: Path
) -> None:
    wide = [(*row, *range(997)) for row in drawn(80, HOUR)]
    result = served(write_log(tmp_path, wide), options=["--until", "build_features"])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "build_features" / "report.json").read_text())
    assert report["rows_in"] == 80


def test_texts_in_ten_languages_come_back_as_they_were_written(
    served: Callable[..., Result], tmp_path: Path
) -> None:
    log = write_log(tmp_path, drawn(80, HOUR, items=len(TEXTS)))
    titles = [(f"i{n}", text) for n, text in enumerate(TEXTS)]
    result = served(log, write(tmp_path / "items.csv", ["sku", "title"], titles))
    assert result.exit_code == 0, result.output
    found = Recommender.load(tmp_path / "run/bundles/current").recommend(["u0", "nobody"], k=10)
    assert set(found["display_text"]) <= set(TEXTS)
    assert len(set(found["display_text"])) == len(TEXTS)


def test_texts_alone_make_similar_items_where_no_event_follows_another(
    served: Callable[..., Result], tmp_path: Path
) -> None:
    log = write_log(tmp_path, drawn(80, HOUR, users=80, items=len(TEXTS)))
    titles = [(f"i{n}", text) for n, text in enumerate(TEXTS)]
    items = write(tmp_path / "items.csv", ["sku", "title"], titles)
    result = served(log, items, options=["--set", "auto.enabled=false"])
    assert result.exit_code == 0, result.output
    assert "two-tower: left out" in " ".join(result.output.split())
    recommender = Recommender.load(tmp_path / "run" / "bundles" / "current")
    reply = recommender.answer(Request(surface="related", item_id="i0", k=3))
    assert "content_similarity" in {item.source for item in reply.items}


def test_ten_seconds_serve_what_is_popular_and_say_so(
    served: Callable[..., Result], tmp_path: Path
) -> None:
    result = served(write_log(tmp_path, drawn(80, HOUR)), options=["--budget", "10s"])
    assert result.exit_code == 0, result.output
    assert "only what is popular" in " ".join(result.output.split())
    assert len(lists_of(tmp_path)["u0"]) == 5


@pytest.mark.parametrize("budget", ["0", "0m", "soon", "5"])
def test_no_budget_is_refused_before_work_starts(
    budget: str, served: Callable[..., Result], tmp_path: Path
) -> None:
    result = served(write_log(tmp_path, drawn(80, HOUR)), options=["--budget", budget])
    assert result.exit_code == 2
    assert "budget" in result.output
    assert not (tmp_path / "run" / "build_features").exists()


def test_two_gibibytes_are_planned_for(
    served: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.auto.machine.free_memory", lambda: 2 << 30)
    options = ["--budget", "20s"]
    result = served(write_log(tmp_path, drawn(80, HOUR)), options=options)
    assert result.exit_code == 0, result.output
    assert "2.0 GiB of free memory" in " ".join(result.output.split())
    assert len(lists_of(tmp_path)["u0"]) > 0


def test_too_little_memory_is_refused_before_anything_is_fitted(
    served: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.auto.machine.free_memory", lambda: 50 << 20)
    result = served(write_log(tmp_path, drawn(80, HOUR)))
    assert result.exit_code == 2
    assert "GiB of memory are free" in " ".join(result.output.split())
    assert not (tmp_path / "run" / "fit_baselines").exists()
