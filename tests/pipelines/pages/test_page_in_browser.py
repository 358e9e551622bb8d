"""The report in headless Chromium, from file:// and with no network at all."""

from functools import partial

import pytest

from pipelines.pages.page import report_html
from pipelines.pages.report_data import read_report_data
from tests.pipelines.pages.synthetic_evaluation import (
    SyntheticEvaluation,
    write_synthetic_evaluation,
)

pytestmark = pytest.mark.slow
HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed \U0001f600",
    "W" * 300,
)


@pytest.fixture(scope="module")
def report_file(tmp_path_factory, plain_report):
    folder = tmp_path_factory.mktemp("browser")
    made = SyntheticEvaluation(
        num_items=len(HOSTILE) + 8,
        titles=HOSTILE,
        categories=HOSTILE,
        orders=("given", "shuffled"),
        warnings=HOSTILE,
    )
    data = read_report_data(
        write_synthetic_evaluation(folder / "workspace", made),
        title=HOSTILE[0],
        split_kind="leave_one_out",
        excludes_history=True,
        provenance=plain_report.provenance,
    )
    path = folder / "report.html"
    path.write_text(report_html(data), encoding="utf-8")
    return path


@pytest.fixture
def open_report(open_offline, report_file):
    return partial(open_offline, report_file)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_every_chart_is_drawn_nothing_overflows_and_all_can_be_read(
    open_report, faults_of_layout, width, scheme
):
    page = open_report(width, color_scheme=scheme)
    assert page.locator("[data-chart]").count() >= 10
    assert faults_of_layout(page) == []


def test_hostile_titles_are_only_text(open_report):
    page = open_report()
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.inner_text("h1") == HOSTILE[0]
    shown = page.eval_on_selector_all("bdi", "all => all.map(one => one.textContent)")
    assert set(HOSTILE) <= set(shown)
    tabs = page.eval_on_selector_all("svg text", "all => all.map(one => one.textContent)")
    assert any(text.startswith("<img") for text in tabs)


def test_charts_follow_the_width_and_tell_their_numbers_to_the_pointer(open_report):
    page = open_report(1280)
    width = "document.querySelector('[data-chart=overview] svg').width.baseVal.value"
    before = page.evaluate(width)
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(f"{width} < 340")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function(f"{width} == {before}")
    page.locator("[data-chart=overview]").scroll_into_view_if_needed()
    page.locator("[data-chart=overview] .mark-symbol path").first.hover()
    page.wait_for_selector("#bubble:not([hidden])")
    assert "users" in page.inner_text("#bubble")


def test_it_can_be_read_by_keyboard(open_report):
    page = open_report()
    page.keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the report"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.hash") == "#summary"
    summary = page.locator("[aria-labelledby=title-overview] summary")
    summary.focus()
    page.keyboard.press("Enter")
    table = page.locator("[aria-labelledby=title-overview] table")
    assert table.is_visible()
    assert table.locator("tbody tr").count() == 8
    labels = page.eval_on_selector_all("[data-chart]", "all => all.map(one => one.ariaLabel)")
    assert all(labels)
    assert page.locator("table:not(:has(caption))").count() == 0


def test_without_scripts_every_table_is_there(open_report):
    page = open_report(java_script_enabled=False)
    assert "Charts need JavaScript" in page.inner_text("footer")
    assert "0." in page.inner_text("#metrics table.stacked >> nth=-1")
