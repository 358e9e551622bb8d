"""The client in headless Chromium, with pages that hold every block and control."""

from pathlib import Path

import pytest

from pipelines.dashboard.context import Context
from tests.pipelines.dashboard.browser import HEIGHT, WIDTHS, served, windows
from tests.pipelines.dashboard.web.pages import HOSTILE, NUM_ROWS, PAGES
from tests.pipelines.dashboard.web.test_server import OneRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with served(Context(stores=OneRun(folder)), PAGES, key="key") as found:
        yield found


@pytest.fixture
def window(chromium, address):
    with windows(chromium, address) as new:
        yield new


def lead(window):
    return window.page.inner_text(".answer")


def focused(window):
    return window.page.evaluate("document.activeElement.id")


def test_a_page_with_every_block_has_no_serious_finding_and_fits(window):
    shown = window()
    shown.open("every")
    for width, scheme in zip(WIDTHS, ("dark", "light", "dark"), strict=True):
        shown.page.set_viewport_size({"width": width, "height": HEIGHT})
        shown.page.emulate_media(color_scheme=scheme)
        shown.see_all()
        assert shown.axe() == []
        assert not shown.overflows()
    for button in shown.page.get_by_role("button", name="Table", exact=True).all():
        button.click()
    assert shown.axe() == []
    assert not shown.overflows()


def test_hostile_titles_are_only_text(window):
    shown = window()
    shown.open("every")
    shown.see_all()
    shown.page.locator("#search-small").fill("&amp; <b>")
    assert shown.page.locator("#small tbody tr").count() == 10
    shown.page.locator("#search-small").fill("<img")
    assert shown.page.locator("#small tbody tr").count() == 10
    shown.page.locator("#control-item").fill("<")
    shown.page.wait_for_selector("#control-item-choices [role=option]")
    assert shown.page.evaluate("window.broken") is None
    assert shown.page.locator("main img, main b, main script").count() == 0
    shown_titles = shown.page.eval_on_selector_all(
        "main bdi, main a", "all => all.map(one => one.textContent)"
    )
    assert {HOSTILE[0], HOSTILE[1]} <= set(shown_titles)
    assert shown.page.inner_text("h1").endswith(HOSTILE[2])


def test_controls_change_the_address_and_back_undoes_it(window):
    shown = window()
    shown.open("every")
    page = shown.page
    page.focus("#control-model")
    page.select_option("#control-model", "2")
    shown.until("document.querySelector('.answer').textContent.startsWith('Model 2')")
    shown.settled()
    assert page.url.endswith("#/every?model=2")
    assert focused(shown) == "control-model"
    page.fill("#control-k", "20")
    page.keyboard.press("Enter")
    shown.until("document.querySelector('.answer').textContent.includes('k 20')")
    page.fill("#control-item", "jerry")
    page.wait_for_selector("#control-item-choices [role=option]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shown.until("document.querySelector('.answer').textContent.includes('item 4')")
    shown.settled()
    assert "model=2&k=20&item=4" in page.url
    for words in ("item none", "k 10", "Model none"):
        page.go_back()
        shown.until(f"document.querySelector('.answer').textContent.includes('{words}')")
        shown.settled()
    page.go_forward()
    shown.until("document.querySelector('.answer').textContent.startsWith('Model 2')")


def test_a_long_table_comes_by_windows(window):
    shown = window()
    shown.open("every")
    page = shown.page
    assert page.inner_text("#long .dt-info") == f"1 to 10 of {NUM_ROWS:,}"
    page.fill("#search-long", "199")
    shown.until("document.querySelector('#long .dt-info').textContent.includes('of 12')")
    page.locator("#long th").first.locator("[role=button]").click()
    page.locator("#long th").first.locator("[role=button]").click()
    shown.until("document.querySelector('#long tbody td').textContent.startsWith('1999')")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV of Long table").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "item,NDCG@10,difference,time,kept"
    assert len(lines) == 13
    assert lines[1].startswith("1999")


def test_a_chart_has_a_table_downloads_and_a_tooltip(window):
    shown = window()
    shown.open("every")
    page = shown.page
    figure = page.locator("figure#first")
    figure.scroll_into_view_if_needed()
    figure.locator(".mark-rect path").first.hover()
    page.wait_for_selector("#bubble:not([hidden])")
    shown_text = page.inner_text("#bubble")
    assert any(f"title: {text}" in shown_text for text in HOSTILE)
    figure.get_by_role("button", name="Table", exact=True).click()
    assert figure.locator("tbody tr").count() == len(HOSTILE)
    saved = {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            figure.get_by_role("button", name=f"{kind} of").click()
        assert download.value.suggested_filename == f"first.{kind.lower()}"
        saved[kind] = Path(download.value.path()).read_bytes()
    assert saved["CSV"].decode().splitlines()[0] == "title,series,NDCG@10"
    assert saved["PNG"].startswith(b"\x89PNG")
    assert b"var(--" not in saved["SVG"]
    assert b"<img" not in saved["SVG"]
    assert b"NDCG@10" in saved["SVG"]


def test_it_is_navigated_by_keyboard_and_announced(window):
    shown = window()
    shown.open("every?model=3")
    page = shown.page
    page.keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the page"
    page.keyboard.press("Enter")
    assert focused(shown) == "main"
    page.get_by_role("link", name="Other page").focus()
    page.keyboard.press("Enter")
    shown.until("document.title === 'Other page \u00b7 Recsys'")
    shown.settled()
    assert page.url.endswith("#/other?model=3")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.inner_text("#announced") == "Other page: shown"
    assert page.get_attribute("nav a[aria-current=page]", "href") == "#/other?model=3"


def test_what_cannot_be_shown_is_a_page_with_words_and_ways_on(window):
    shown = window()
    for page, words in (
        ("other?item=404", "no item '404'"),
        ("other?item=broken", "the dashboard's log says why"),
        ("%E0%A4%A", "there are: every, hidden, other"),
    ):
        shown.open(page, expected="failed")
        assert words in lead(shown)
    assert shown.axe() == []
    # The console names the failed request itself.
    shown.faults[:] = [one for one in shown.faults if "Failed to load resource" not in one]
    shown.page.get_by_role("link", name="The first page").click()
    shown.page.wait_for_selector("html[data-page=drawn]")
    assert shown.page.url.endswith("#/every")
