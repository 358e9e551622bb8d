"""Each example runs, beats popularity, and prints what its page shows."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from examples.data import WORLDS, write
from examples.run import EXAMPLES, ROOT, page_of, run
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
def test_the_example_of_movies_prints_what_its_page_shows(tmp_path: Path) -> None:
    assert_like_the_page("movies", run("movies", tmp_path, NOT_SHOWN))


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
