"""The report of semantic IDs in headless Chromium, from file:// and with no network at all."""

import re
from dataclasses import replace

import pytest

from pipelines.pages.semantic_ids.page import write_semantic_id_report

pytestmark = pytest.mark.slow
HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed \U0001f600",
    "W" * 300,
)


@pytest.fixture
def report_file(planted_ids, tmp_path):
    made = planted_ids(titles=HOSTILE, title=HOSTILE[1])
    codes = made.ids.codes.clone()
    codes[1], codes[2] = made.ids.codes[2], made.ids.codes[1]
    path = tmp_path / "ids.html"
    write_semantic_id_report(replace(made, previous=replace(made.ids, codes=codes)), path)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_charts_are_drawn_nothing_overflows_and_all_can_be_read(
    open_offline, report_file, faults_of_layout, width, scheme
):
    page = open_offline(report_file, width, color_scheme=scheme)
    assert page.locator("[data-chart]").count() == 7
    assert faults_of_layout(page) == []
    drawn = page.evaluate("performance.getEntriesByName('charts-drawn')[0].startTime")
    # A second on a calm machine; tests share theirs.
    assert drawn < 5_000


def test_titles_are_only_text_and_axes_are_plain_numbers(open_offline, report_file):
    page = open_offline(report_file)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.inner_text("h1") == HOSTILE[1]
    texts = page.eval_on_selector_all("svg text", "all => all.map(one => one.textContent)")
    assert "first code" in texts
    assert not [text for text in texts if re.search(r"\de[+-]\d", text)]


def test_the_pointer_is_told_numbers(open_offline, report_file):
    page = open_offline(report_file)
    page.locator("[data-chart=depth]").scroll_into_view_if_needed()
    page.locator("[data-chart=depth] .mark-rect path").first.hover()
    page.wait_for_selector("#bubble:not([hidden])")
    assert "100.0%" in page.inner_text("#bubble")
