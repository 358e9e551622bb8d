"""The page of a backtest in headless Chromium, from file:// and with no network at all."""

from functools import partial

import pytest

from pipelines.pages.backtest.page import write_backtest_page
from pipelines.pages.backtest.words import words_of
from tests.pipelines.pages.backtest.document import document

pytestmark = pytest.mark.slow
HOSTILE = '<img src=x onerror="window.broken=1"></script><script>window.broken=1</script>'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    made = document(peer=HOSTILE, error=HOSTILE)
    made["data_set"] = HOSTILE
    path = tmp_path_factory.mktemp("browser") / "backtest.html"
    write_backtest_page({**made, "words": words_of(made)}, path)
    return path


@pytest.fixture
def open_page(open_offline, page_file):
    return partial(open_offline, page_file)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_chart_is_drawn_and_nothing_overflows(open_page, faults_of_layout, width, scheme):
    page = open_page(width, color_scheme=scheme)
    assert page.locator("[data-chart]").count() == 3
    assert faults_of_layout(page) == []


def test_hostile_names_are_only_text(open_page):
    page = open_page()
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.inner_text("h1") == HOSTILE


def test_without_scripts_every_number_is_there(open_page):
    page = open_page(java_script_enabled=False)
    assert "0.2000" in page.inner_text("#policies")
    assert "2026-01-04" in page.inner_text("#steps")
    assert "failed on step 1, 2, 3, 4" in page.inner_text("#peers")
