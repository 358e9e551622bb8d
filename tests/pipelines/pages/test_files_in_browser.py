"""Pages on disk in headless Chromium, from file:// and with no network at all."""

import pytest

from pipelines.pages.backtest import backtest_page
from pipelines.pages.file import write_page
from pipelines.pages.report import report_page
from tests.pipelines.dashboard.browser import windows
from tests.pipelines.pages.backtest.document import document

pytestmark = pytest.mark.slow
HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed \U0001f600",
    "W" * 300,
)


def run_report(reported, path):
    data = reported(categories=HOSTILE, warnings=HOSTILE, title=HOSTILE[1])
    write_page(report_page(data), path)


def backtest(reported, path):
    made = document(peer=HOSTILE[0], error=HOSTILE[1])
    write_page(backtest_page({**made, "data_set": HOSTILE[1]}), path)


@pytest.fixture(params=[run_report, backtest], ids=lambda made: made.__name__)
def page_file(request, reported, tmp_path):
    path = tmp_path / f"{request.param.__name__}.html"
    request.param(reported, path)
    return path


def test_every_chart_is_drawn_nothing_overflows_and_all_can_be_read(chromium, page_file):
    with windows(chromium, page_file.as_uri()) as new:
        for width, scheme in ((390, "light"), (1440, "dark")):
            window = new(width, color_scheme=scheme, offline=True)
            window.page.goto(page_file.as_uri())
            window.settled()
            window.see_all()
            window.page.eval_on_selector_all("details", "all => all.forEach(o => o.open = true)")
            assert window.axe() == []
            assert not window.overflows()
            assert window.page.evaluate("window.broken") is None
            assert window.page.locator("img").count() == 0
            assert HOSTILE[1] in window.page.inner_text("h1")
        if window.page.locator("#toml").count():
            window.page.click("#toml button")
            button = "document.querySelector('#toml button').textContent"
            window.until(f"['Copied', 'Selected'].includes({button})")
            assert 'separator = "<"' in window.page.inner_text("#toml pre")
