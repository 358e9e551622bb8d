"""Every page in Chromium over a real workspace: each control, link, width and scheme."""

import pytest
from starlette.testclient import TestClient

from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.web.access import AccessRules
from pipelines.dashboard.web.app import Site, create_app
from tests.pipelines.dashboard.browser import HEIGHT, WIDTHS, served, windows

pytestmark = pytest.mark.slow
FEW = 2
"""Options of a control that are tried."""


def values_of(control, client: TestClient, page: str) -> list[str]:
    """Values that a reader could choose next; the first suggestions of a search."""
    now = control["value"]
    if control["kind"] == "select":
        return [one["value"] for one in control["options"] if one["value"] != now][:FEW]
    if control["kind"] == "number":
        bounds = (control["least"], control["most"])
        return [f"{one:g}" for one in bounds if one is not None and f"{one:g}" != now]
    if control["suggest"] is None:
        return [one["value"] for one in control["options"]][:1]
    found = client.get(f"/api/suggest/{page}/{control['suggest']}").json()
    return [one["value"] for one in found][:1]


def test_pages_fit_have_no_serious_finding_and_all_they_lead_to_is_there(chromium, context):
    """One pass: what a page leads to is opened once, whichever parameters it is given."""
    with served(context, PAGES) as address, windows(chromium, address) as new:
        shown, visited = new(WIDTHS[0], color_scheme="dark"), set()
        for entry in PAGES:
            shown.open(entry.name)
            shown.see_all()
            assert not shown.overflows(), entry.name
            shown.page.set_viewport_size({"width": WIDTHS[-1], "height": HEIGHT})
            assert not shown.overflows(), entry.name
            shown.page.emulate_media(color_scheme="light")
            assert shown.axe() == [], entry.name
            shown.page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
            shown.page.emulate_media(color_scheme="dark")
            hashes = "all => [...new Set(all.map(one => one.hash))]"
            for one in shown.page.eval_on_selector_all("main a[href^='#/']", hashes):
                page, _, query = one.partition("?")
                names = tuple(part.partition("=")[0] for part in query.split("#")[0].split("&"))
                if (page, names) not in visited:
                    visited.add((page, names))
                    shown.follow(one.removeprefix("#/"))


def test_every_control_leads_to_a_page(context):
    site = Site(context=context, pages=PAGES, access=AccessRules())
    with TestClient(create_app(site), base_url="http://127.0.0.1:8100") as client:
        for name in (entry.name for entry in PAGES):
            page = f"/api/page/{name}"
            for control in client.get(page).json()["controls"]:
                for value in values_of(control, client, name):
                    reply = client.get(page, params={control["name"]: value})
                    assert reply.status_code == 200, (control["name"], value, reply.text)
