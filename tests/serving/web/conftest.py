"""The try-it page of a small bundle, in headless Chromium."""

from dataclasses import replace

import pytest

from serving.bundle.catalogue import Catalogue
from serving.bundle.manifest import publish
from serving.bundle.properties import Properties
from serving.bundle.users import Users
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import synthetic_parts
from tests.serving.web.try_it_page import CATEGORY, HOSTILE, SIZE, pass_by_key, serving


@pytest.fixture(scope="package")
def page_bundles(tmp_path_factory):
    """Titles, categories and user ids that a careless page would trip over."""
    folder = tmp_path_factory.mktemp("page")
    parts = synthetic_parts(tmp_path_factory.mktemp("parts"), SIZE)
    plain = list(parts.catalogue.display_texts)[1:]
    catalogue = Catalogue.from_lists(
        item_ids=list(parts.catalogue.item_ids)[1:],
        display_texts=[*HOSTILE, *plain[len(HOSTILE) :]],
        category_names=["even", CATEGORY, "Comedy"],
        category_values=parts.catalogue.category_values,
        category_offsets=parts.catalogue.category_offsets,
    )
    users = Users.from_lists(
        user_ids=["<i>first</i>", *(f"user-{row}" for row in range(2, SIZE.num_users + 1))],
        features=parts.users.features,
        item_rows=parts.users.item_rows,
        offsets=parts.users.offsets,
        times=parts.users.times,
    )
    brands = {"brand": ["Acme" if row % 3 == 0 else None for row in range(SIZE.num_items)]}
    properties = Properties.of_values({"brand": "text"}, brands)
    parts = replace(parts, catalogue=catalogue, users=users, properties=properties)
    write_bundle(folder, parts, version="v1")
    publish(folder, "v1")
    return folder


@pytest.fixture(scope="package")
def address(page_bundles):
    """A server without an online store: what is clicked is part of the next request alone."""
    with serving(page_bundles, store="none") as (address, _):
        yield address


@pytest.fixture
def open_page(chromium, address):
    """Open the page; nothing may go wrong in it and nothing may be requested of anyone else."""
    contexts, faults = [], []

    def opened(path="/", server=address, width=1280, asks_for=None, **options):
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        if asks_for is not None:
            context.route("**/v1/**", lambda route: pass_by_key(route, asks_for))
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda message: (
                faults.append(message.text)
                if message.type == "error" and "Failed to load resource" not in message.text
                else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(f"{server}/") else faults.append(request.url)
            ),
        )
        page.goto(server + path)
        if asks_for is None:
            page.wait_for_selector("#list .item")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []
