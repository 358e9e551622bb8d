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


def test_every_chart_is_drawn_nothing_overflows_and_all_can_be_read(chromium, reported, tmp_path):
    made = document(model=HOSTILE[0])
    pages = {
        "backtest": backtest_page({**made, "data_set": HOSTILE[1]}),
        "run": report_page(reported(categories=HOSTILE, warnings=HOSTILE, title=HOSTILE[1])),
    }
    for name, page in pages.items():
        path = tmp_path / f"{name}.html"
        write_page(page, path)
        with windows(chromium, path.as_uri()) as new:
            window = new(390, color_scheme="light", offline=True)
            window.page.goto(path.as_uri())
            window.settled()
            window.see_all()
            window.page.eval_on_selector_all("details", "all => all.forEach(o => o.open = true)")
            assert not window.overflows()
            assert window.page.evaluate("window.broken") is None
            assert window.page.locator("img").count() == 0
            assert HOSTILE[1] in window.page.inner_text("h1")
            window.page.set_viewport_size({"width": 1440, "height": 900})
            window.page.emulate_media(color_scheme="dark")
            assert window.axe() == []
            assert not window.overflows()
            if name == "run":
                window.page.click("#toml button")
                button = "document.querySelector('#toml button').textContent"
                window.until(f"['Copied', 'Selected'].includes({button})")
                assert 'separator = "<"' in window.page.inner_text("#toml pre")
