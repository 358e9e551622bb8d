"""Every page of the dashboard in Chromium, over a real workspace: each control, three widths, both
schemes."""

import json
from urllib.parse import urlencode

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.pages.list import PAGES
from pipelines.dashboard.web import export
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.pages import file
from tests.pipelines.dashboard.browser import WIDTHS, Window, served, windows

pytestmark = pytest.mark.slow
NAMES = [page.name for page in PAGES]
FEW = 3
"""Options of a control that are tried."""


@pytest.fixture(scope="module")
def address(context):
    with served(context, PAGES) as found:
        yield found


@pytest.fixture
def window(chromium, address):
    with windows(chromium, address) as new:
        yield new


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_its_window_and_has_no_serious_finding(window, name, width):
    for scheme in ("light", "dark"):
        shown = window(width, color_scheme=scheme)
        shown.open(name)
        shown.see_all()
        assert shown.axe() == []
        assert not shown.overflows()


def values_of(control, window: Window) -> list:
    """Values that a reader could choose next."""
    now = control["value"]
    if control["kind"] == "select":
        return [one["value"] for one in control["options"] if one["value"] != now][:FEW]
    if control["kind"] == "toggle":
        return ["0" if now == "1" else "1"]
    if control["kind"] == "number":
        bounds = (control["least"], control["most"])
        return [f"{one:g}" for one in bounds if one is not None and f"{one:g}" != now]
    return []


def choose(window: Window, control, value: str) -> None:
    """Choose a value as a reader does."""
    field = window.page.locator(f"#control-{control['name']}")
    if control["kind"] == "select":
        field.select_option(value)
    elif control["kind"] == "toggle":
        field.click()
    else:
        field.fill(value)
        field.press("Enter")


def find(window: Window, control) -> None:
    """Take the first suggestion of a search, where there is one."""
    field = window.page.locator(f"#control-{control['name']}")
    if field.is_disabled() or field.evaluate("one => one.tagName") == "SUMMARY":
        return
    field.focus()
    list_ = f"#control-{control['name']}-choices"
    window.until(f"!document.querySelector('{list_}').hidden")
    if window.page.locator(f"{list_} [role=option]").count():
        field.press("ArrowDown")
        field.press("Enter")


@pytest.mark.parametrize("name", NAMES)
def test_every_control_leads_to_a_page(window, address, name):
    shown = window()
    controls = shown.page.request.get(f"{address}/api/page/{name}").json()["controls"]
    for control in controls:
        for value in values_of(control, shown):
            shown.open(name)
            choose(shown, control, value)
            shown.until(f"location.hash.includes('{control['name']}=')")
            shown.settled()
        if control["kind"] in ("search", "several"):
            shown.open(name)
            find(shown, control)
            shown.page.wait_for_timeout(50)
            shown.settled()


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_a_page_leads_to_a_page(window, address, name):
    shown = window()
    shown.open(name)
    shown.see_all()
    hashes = "all => [...new Set(all.map(one => one.hash))]"
    found = shown.page.eval_on_selector_all("main a[href^='#/']", hashes)
    kinds = {}
    for one in found:
        page, _, query = one.partition("?")
        names = tuple(part.partition("=")[0] for part in query.split("#")[0].split("&"))
        kinds.setdefault((page, names), one)
    for one in kinds.values():
        shown.open(one.removeprefix("#/"))


def test_an_exported_file_shows_all_that_it_holds_and_asks_for_nothing(
    chromium, workspace, tmp_path
):
    context = Context(stores=Stores(Places(roots=[workspace])), exported=True)
    path = tmp_path / "run.html"
    export.write(context, PAGES, export.find_runs(context.stores, []), path)
    assert path.stat().st_size <= file.MAX_BYTES
    text = path.read_text().split('type="application/json">')[1].split("</script>")[0]
    held = json.loads(text)["exported"]
    assert {"summary", "run", "compare", "why"} <= {one["name"] for one in held}
    with windows(chromium, path.as_uri()) as new:
        shown = new(offline=True)
        for one in held:
            shown.open(f"{one['name']}?{urlencode(one['parameters'], doseq=True)}")
            shown.see_all()
            assert shown.page.inner_text("h1") == " ".join(one["page"]["title"].split())
            assert not shown.overflows()
