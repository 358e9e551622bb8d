"""Every page in Chromium over a real workspace: each control, link, width and scheme."""

import json
from urllib.parse import urlencode

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.web import export
from pipelines.dashboard.workspaces.stores import Places, Stores
from tests.pipelines.dashboard.browser import HEIGHT, WIDTHS, Window, served, windows

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


@pytest.fixture(scope="module")
def visited():
    """Pages and their parameters that a link has led to."""
    return set()


def values_of(control, reply) -> list[str]:
    """Values that a reader could choose next; the first suggestions of a search."""
    now = control["value"]
    if control["kind"] == "select":
        return [one["value"] for one in control["options"] if one["value"] != now][:FEW]
    if control["kind"] == "number":
        bounds = (control["least"], control["most"])
        return [f"{one:g}" for one in bounds if one is not None and f"{one:g}" != now]
    if control["suggest"] is None:
        return [one["value"] for one in control["options"]][:1]
    return [one["value"] for one in reply(control["suggest"])][:1]


def choose(window: Window, control, value: str) -> None:
    """Choose a value as a reader does."""
    field = window.page.locator(f"#control-{control['name']}")
    if control["kind"] == "select":
        field.select_option(value)
    else:
        field.fill(value)
        field.press("Enter")
    window.until(f"location.hash.includes('{control['name']}=')")
    window.settled()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_has_no_serious_finding_and_all_it_leads_to_is_there(
    window, address, visited, name
):
    shown = window()
    shown.open(name)
    for width, scheme in zip(WIDTHS, ("dark", "light", "dark"), strict=True):
        shown.page.set_viewport_size({"width": width, "height": HEIGHT})
        shown.page.emulate_media(color_scheme=scheme)
        shown.see_all()
        assert not shown.overflows()
        if width < WIDTHS[-1]:
            assert shown.axe() == []
    hashes = "all => [...new Set(all.map(one => one.hash))]"
    for one in shown.page.eval_on_selector_all("main a[href^='#/']", hashes):
        page, _, query = one.partition("?")
        names = tuple(part.partition("=")[0] for part in query.split("#")[0].split("&"))
        if (page, names) not in visited:
            visited.add((page, names))
            shown.open(one.removeprefix("#/"))


@pytest.mark.parametrize("name", NAMES)
def test_every_control_leads_to_a_page(window, address, name):
    shown = window()
    get = shown.page.request.get
    page = f"{address}/api/page/{name}"
    drawn: set[str] = set()
    for control in get(page).json()["controls"]:
        kind, key = control["kind"], control["name"]
        values = values_of(
            control, lambda search: get(f"{address}/api/suggest/{name}/{search}").json()
        )
        for value in values:
            reply = get(f"{page}?{urlencode({key: value})}")
            assert reply.status == 200, (key, value, reply.text())
        if values and kind in ("select", "number") and kind not in drawn:
            drawn.add(kind)
            shown.open(name)
            choose(shown, control, values[0])


def test_an_exported_file_shows_all_that_it_holds_and_asks_for_nothing(
    chromium, workspace, tmp_path
):
    context = Context(stores=Stores(Places(roots=[workspace])), exported=True)
    path = tmp_path / "run.html"
    export.write(context, PAGES, export.find_run(context.stores, None), path)
    assert path.stat().st_size <= 5_000_000
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
