"""Runs as one file: what it holds, what is left out, and that it opens without a server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.web import export
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Page
from tests.pipelines.dashboard.browser import windows
from tests.pipelines.dashboard.web.pages import HOSTILE, PAGES
from tests.pipelines.dashboard.web.test_server import OneRun

RUN = Run(
    key="0123456789ab",
    name=HOSTILE[1],
    kind="workspace",
    status="complete",
    time=None,
    path=Path("run"),
)


def gone(context: Context, query: Query) -> Page:
    raise NotFoundError("this run has no ranker")


def both_models(context: Context, query: Query) -> list[Query]:
    run = query.text("run")
    return [Query.of(run=run), Query.of(run=run, model="2", runs=("0", "1"))]


ENTRIES = (replace(PAGES[0], exports=both_models), PageEntry(name="gone", title="Gone", build=gone))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    context = Context(stores=OneRun(folder), exported=True)
    path = folder / "out" / "run.html"
    left_out = export.write(context, ENTRIES, RUN, path)
    assert left_out == ["Gone: this run has no ranker"]
    return path


def held(path) -> list[dict]:
    text = path.read_text().split('type="application/json">')[1].split("</script>")[0]
    return json.loads(text)["exported"]


def test_a_file_holds_the_queries_that_a_page_names(exported):
    documents = held(exported)
    assert [(one["name"], one["parameters"].get("model")) for one in documents] == [
        ("every", None),
        ("every", ["2"]),
    ]
    tables = next(one for one in documents[0]["page"]["blocks"] if one.get("key") == "tables")
    long = tables["blocks"][1]
    assert len(long["rows"]) == export.MAX_ROWS
    assert long["source"] is None
    assert "first 200 of 2,000 rows" in long["note"]
    assert exported.stat().st_size < 2_000_000


def test_a_run_is_found_by_key_or_folder_and_a_wrong_name_says_which_there_are(tmp_path):
    class Two(OneRun):
        def runs(self):
            return [replace(RUN, name="shop", path=tmp_path), replace(RUN, key="b" * 12)]

    stores = Two(tmp_path)
    found = [export.find_run(stores, one) for one in (None, "b" * 12, str(tmp_path))]
    assert [(run.name, run.key[0]) for run in found] == [
        ("shop", "0"),
        (RUN.name, "b"),
        ("shop", "0"),
    ]
    with pytest.raises(ValueError, match=r"the newest are: 0123456789ab \(shop\)"):
        export.find_run(stores, "nowhere")


@pytest.fixture
def window(chromium, exported):
    with windows(chromium, exported.as_uri()) as new:
        yield new(offline=True)


@pytest.mark.slow
def test_controls_offer_what_the_file_holds(window):
    window.open("every")
    page = window.page
    options = page.locator("#control-model option")
    enabled = [one.get_attribute("value") for one in options.all() if one.is_enabled()]
    assert enabled == ["", "2"]
    assert options.nth(1).inner_text() == "Model 0 (not in this file)"
    assert page.locator("#control-k").is_disabled()
    assert page.locator("#control-item").is_disabled()
    assert "This file holds some of the values" in page.inner_text(".controls")
    page.select_option("#control-model", "2")
    window.until("document.querySelector('.answer').textContent.startsWith('Model 2')")
    window.settled()
    assert page.locator(".words a").count() == 0, "a file of a run is not in this file"
