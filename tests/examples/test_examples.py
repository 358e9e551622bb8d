"""Each example runs, beats popularity, and prints what its page shows."""

import os
import re
import tomllib
from pathlib import Path

import polars as pl
import pytest

from examples.data import MIRRORED, WORLDS, joined_shops, write
from examples.run import EXAMPLES, ROOT, page_of, run
from pipelines.datasets.fetch import Fetched
from pipelines.presets.resolve import ConfigSources

NOT_SHOWN = ("tracking.enabled=false", "search.meaning_words=200")
"""Settings that change nothing that a page shows, and a third of the time."""
METRIC_TOLERANCE = 0.05
"""Processors round in different orders, and a training follows: less than this is the same."""


def block(page: str, language: str) -> str:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (found,) = [body for name, body in fences if name == language]
    return str(found)


def metrics_of(output: str) -> dict[str, list[float]]:
    rows = re.findall(r"^  (popularity|served) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    return {name: [float(value) for value in values] for name, *values in rows}


def histories_of(output: str) -> list[str]:
    return re.findall(r"^  lately: +(.+)$", output, re.MULTILINE)


def recommended_in(output: str) -> list[str]:
    lists = output[output.index("recommended:") :]
    return re.findall(r"^(?:  recommended:| {13,}) *(.+)$", "  " + lists, re.MULTILINE)


def assert_like_the_page(name: str, output: str) -> None:
    shown = block(page_of(name).read_text(encoding="utf-8"), "text")
    assert histories_of(output) == histories_of(shown), f"python -m examples.run {name} --page"
    lists, listed = recommended_in(output), recommended_in(shown)
    assert len(lists) == len(listed) == 10
    assert len(set(lists) & set(listed)) >= len(set(listed)) / 2
    found, written = metrics_of(output), metrics_of(shown)
    for model in ("popularity", "served"):
        assert found[model] == pytest.approx(written[model], abs=METRIC_TOLERANCE)
    assert found["served"][1] > found["popularity"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WORLDS))
def test_an_example_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    assert_like_the_page(name, run(name, tmp_path, NOT_SHOWN))


@pytest.mark.slow
@pytest.mark.mirror
@pytest.mark.skipif("RECSYS_DATA_MIRROR" not in os.environ, reason="RECSYS_DATA_MIRROR is not set")
@pytest.mark.parametrize("name", ["movies", *MIRRORED])
def test_an_example_of_public_data_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    assert_like_the_page(name, run(name, tmp_path, NOT_SHOWN))


def test_logs_of_three_shops_are_one_log_in_the_order_of_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {
        "beauty": {"A": [("b1", 10), ("b2", 50)], "B": [("b1", 10)]},
        "sports": {"A": [("s1", 15)]},
        "toys": {"A": [("t1", None), ("t2", None)], "C": [("t2", None), ("t1", None)]},
    }
    for shop, users in logs.items():
        rows = [
            {"user_id": user, "item_id": item, "sequence_index": place, "event_time": time}
            for user, events in users.items()
            for place, (item, time) in enumerate(events)
        ]
        (folder := tmp_path / shop).mkdir()
        events = pl.DataFrame(rows, schema_overrides={"event_time": pl.Int64})
        time = pl.from_epoch("event_time", "s")
        events = events.drop("event_time") if shop == "toys" else events.with_columns(time)
        events.write_parquet(folder / "events.parquet")
        items = events.select("item_id", title="item_id", categories=pl.concat_list("item_id"))
        items.unique().write_parquet(folder / "items.parquet")
    monkeypatch.setattr("examples.data.find_dataset", lambda name: name.removeprefix("amazon-"))
    made = lambda shop: Fetched(directory=tmp_path / shop, source="planted")  # noqa: E731
    monkeypatch.setattr("examples.data.fetch", made)
    joined = joined_shops()
    # Purchases without times are spread over those with: t1 at 20, t2 at 40.
    order = dict(joined["events"].group_by("user_id").agg("item_id").iter_rows())
    assert order == {"A": ["b1", "s1", "t1", "t2", "b2"], "B": ["b1"], "C": ["t2", "t1"]}
    shops = dict(joined["items"].select("item_id", "domain").iter_rows())
    assert shops == {item: {"b": "beauty", "s": "sports", "t": "toys"}[item[0]] for item in shops}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_shows_its_file_which_is_read_whole(name: str) -> None:
    path = ROOT / "examples" / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    page = page_of(name).read_text(encoding="utf-8")
    assert block(page, "toml") == text, f"python -m examples.run {name} --page"
    assert f"python -m examples.run {name}\n" in block(page, "")
    config = ConfigSources(path=path).config()
    assert config.workspace == Path(tomllib.loads(text)["workspace"])
    assert f"]({name}.md)" in (ROOT / "docs" / "examples" / "index.md").read_text()


def test_there_is_no_page_without_an_example() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "examples").glob("*.md")} - {"index"}
    assert pages == set(EXAMPLES) == {path.stem for path in (ROOT / "examples").glob("*.toml")}


def test_data_are_the_same_at_every_call(tmp_path: Path) -> None:
    for name in WORLDS:
        first, second = tmp_path / f"{name}-1", tmp_path / f"{name}-2"
        assert write(name, first) == write(name, second)
        for path in first.iterdir():
            assert path.read_bytes() == (second / path.name).read_bytes()


def test_an_unknown_example_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no example 'musik'; there are movies, shop"):
        run("musik", tmp_path)
