"""Rules that every page follows, over a real workspace and over an empty folder."""

import pytest

from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.pages.document import Chart, Section
from pipelines.pages.encoding import encoded
from tests.pipelines.dashboard.documents import blocks_of, dashboard, words

ENTRIES = pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
NEXT_STEPS = {
    "summary": "recsys demo",
    "runs": "recsys demo",
    "run": "recsys demo",
    "compare": "recsys run shop.toml",
    "why": "recsys run shop.toml",
    "releases": "recsys run shop.toml",
}


@ENTRIES
def test_a_document_is_small_and_its_charts_have_words_values_and_origins(context, entry):
    page = entry.build(context, Query())
    assert page.title
    assert page.lead
    assert len(encoded(page)) < 250_000
    charts = list(blocks_of(page.blocks, Chart))
    assert len({chart.key for chart in charts}) == len(charts)
    for chart in charts:
        assert chart.title
        assert chart.note
        assert chart.rows
        assert all(len(row) == len(chart.columns) for row in chart.rows)
        assert chart.origins or entry.name == "runs"
    keys = [block.key for block in blocks_of(page.blocks, Section)]
    assert len({*keys}) == len(keys)


@ENTRIES
def test_without_a_run_a_page_says_what_to_do(tmp_path, entry):
    try:
        page = entry.build(dashboard(tmp_path), Query())
        said = " ".join([page.lead, words(page), *page.notices])
    except NotFoundError as error:
        said = str(error)
    assert NEXT_STEPS[entry.name] in said


@ENTRIES
def test_a_run_that_is_gone_is_not_found(context, entry):
    query = Query.of(run="gone", runs=("gone", "gone2"))
    if entry.name == "runs":
        return
    with pytest.raises(NotFoundError, match="no run 'gone'"):
        entry.build(context, query)
