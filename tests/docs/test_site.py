"""The built site: no warning, complete references, no network, readable on a telephone."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from docs.generators.command_line import commands
from docs.generators.configuration import docstrings_of
from docs.generators.repository import package_version
from pipelines.cli.main import app
from pipelines.config.run import RunConfig
from pipelines.config.toml import dataclasses_in, list_keys
from serving.settings import Settings
from serving.web.descriptions import document
from tests.conftest import BuiltOnce

ROOT = Path(__file__).parents[2]
QUESTIONS = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))
NARROW = 390
pytestmark = pytest.mark.slow


def build(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.fixture(scope="session")
def site(built_once: BuiltOnce) -> Path:
    pytest.importorskip("mkdocs", reason="needs MkDocs: make install")
    return built_once("site", build)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_build_is_strict_and_without_a_warning(site: Path) -> None:
    assert "strict: true" in text_of(ROOT / "mkdocs.yml")
    assert package_version() in text_of(site / "index.html").split("<body")[1].split("<main")[0]


def test_the_references_name_every_command_key_setting_and_route(site: Path) -> None:
    page = text_of(site / "reference" / "command-line.html")
    assert [name for name, _ in commands(get_command(app)) if f">{name}<" not in page] == []

    page = text_of(site / "reference" / "configuration.html")
    named = set(re.findall(r"<code>(\w+)</code>", page)) | set(re.findall(r"[\[.](\w+)\]<", page))
    keys = {key.rpartition(".")[2] for key in list_keys(RunConfig)}
    assert {key for key in keys if key != "<name>"} - named == set()

    page = text_of(site / "reference" / "settings.html")
    named = {f"RECSYS_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert [name for name in named if name not in page] == []

    page = text_of(site / "reference" / "http.html")
    assert [path for path in document()["paths"] if path not in page] == []


def undocumented(kind: type) -> Iterator[str]:
    """List the keys of a configuration, and of those in it, that no docstring says anything of."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        within = list(dataclasses_in(hints[field.name]))
        for one in within:
            yield from undocumented(one)
        if not within and not docstrings_of(kind).get(field.name):
            yield f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("kind", [RunConfig, Settings])
def test_every_key_says_what_it_does(kind: type) -> None:
    assert sorted(set(undocumented(kind))) == []


def test_python_has_its_docstrings(site: Path) -> None:
    page = text_of(site / "reference" / "python.html")
    assert "serving.recommend.Recommender" in page
    assert ":::" not in page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(https?:[^"'\s>]+)"""
    )
    found = {url for page in site.rglob("*.html") for url in fetched.findall(text_of(page))}
    assert found == set()
    styles = "".join(text_of(path) for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?https?:", styles) == []


def test_lists_and_tables_are_none_of_a_paragraph(site: Path) -> None:
    paragraph = re.compile(r"<p>((?:(?!</p>).)*)</p>", re.DOTALL)
    missed = re.compile(r"^(?:[-*] |\||```)", re.MULTILINE)
    found = {
        str(page.relative_to(site)): text[:80]
        for page in site.rglob("*.html")
        for text in paragraph.findall(text_of(page))
        if missed.search(text)
    }
    assert found == {}


def pages_of(site: Path) -> list[str]:
    """All pages, of those of source files some."""
    found = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    sources = [page for page in found if page.startswith("source/")]
    return [page for page in found if page not in sources] + sources[::40]


def test_pages_are_no_wider_than_a_telephone(site: Path, chromium: Any) -> None:
    context = chromium.new_context(
        viewport={"width": NARROW, "height": 844}, java_script_enabled=False
    )
    page = context.new_page()
    wide = {}
    for name in pages_of(site):
        page.goto(f"file://{site / name}", wait_until="load")
        width = page.evaluate("document.scrollingElement.scrollWidth")
        if width > NARROW:
            wide[name] = width
    context.close()
    assert wide == {}


@pytest.fixture(scope="module")
def search(site: Path, chromium: Any) -> Iterator[Any]:
    """Open the site from the disk and search in it; nothing may be requested of a network."""
    context = chromium.new_context()
    page = context.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"file://{site / 'index.html'}")

    field = page.locator("[data-md-component=search-query]")
    field.click()
    results = "[data-md-component=search-result] .md-search-result__item > a"

    def found(question: str) -> list[str]:
        page.evaluate("document.querySelector('.md-search-result__list').replaceChildren()")
        field.fill(question)
        field.dispatch_event("keyup")
        page.wait_for_selector(results, state="attached", timeout=60_000)
        links = page.eval_on_selector_all(results, "all => all.map(one => one.href)")
        places = [re.sub(r"[#?].*", "", link).partition(f"{site.name}/")[2] for link in links]
        return list(dict.fromkeys(places))

    yield found
    context.close()
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:"))] == []


def test_search_finds_the_answer_among_the_first_three(search: Any) -> None:
    assert len(QUESTIONS) >= 30
    missed = {}
    for one in QUESTIONS:
        first = search(one["question"])[:3]
        if not set(one["pages"]) & set(first):
            missed[one["question"]] = first
    assert missed == {}
