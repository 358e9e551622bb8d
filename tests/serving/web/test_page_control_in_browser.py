"""The page in headless Chromium, over a server with an online store and a configuration."""

import json

import pytest

from tests.serving.web.try_it_page import ask, choose_title, listed, new_list, serving, until

pytestmark = pytest.mark.slow
CONFIGURATION = """
[surfaces.home]
diversity = {method = "mmr", strength = 0.2}

[surfaces.letter]
kind = "home"
k = 5

[[rules]]
name = "launch"
kind = "pin"
items = ["item-9"]
slot = 2
surfaces = ["home", "letter"]

[[rules]]
name = "spring"
kind = "boost"
where = "category = 'even'"
places = 3
surfaces = ["cart"]
"""


@pytest.fixture(scope="module")
def controlled(page_bundles, tmp_path_factory):
    """A server with an online store, rules, and leave to hide items."""
    folder = tmp_path_factory.mktemp("controlled")
    (folder / "serving.toml").write_text(CONFIGURATION)
    environment = {
        "store": f"sqlite:{folder / 'online'}",
        "config": str(folder / "serving.toml"),
        "allow_admin": "true",
    }
    with serving(page_bundles, **environment) as (address, _):
        yield address


def test_a_click_is_stored_and_the_list_follows(open_page, controlled):
    page = open_page(server=controlled)
    assert page.is_checked("#events")
    before = listed(page)
    with new_list(page):
        page.locator("#list .title").nth(3).click()
    visitor = page.input_value("#user")
    assert visitor.startswith("visitor-")
    assert page.inner_text("#visit .badge") == "viewed"
    after = listed(page)
    assert before[3] not in after
    assert after != before
    assert "Since the last list" not in page.inner_text("#notes")
    with new_list(page):
        page.click("#list .heart >> nth=0")
    assert page.inner_text("#visit .badge >> nth=1") == "liked"
    assert "Since the last list" in page.inner_text("#notes")
    # The server knows it: another client's request for this visitor has the same list.
    reply = ask(controlled, "/v1/recommend", json.dumps({"user_id": visitor, "k": 10}))
    assert [item["item_id"] for item in reply["items"]] == listed(page)
    page.reload()
    page.wait_for_selector("#list .item")
    assert listed(page) == [item["item_id"] for item in reply["items"]]


def test_why_an_item_is_here_and_why_another_is_not(open_page, controlled):
    page = open_page("/#user=user-4", server=controlled)
    page.click("#list .more >> nth=1")
    page.wait_for_selector("#why:not([hidden])")
    assert listed(page)[1] == "item-9"
    assert page.inner_text("#why-text").startswith("Slot 2")
    assert "It is put here by rule launch." in page.inner_text("#why-text")
    page.keyboard.press("Escape")
    page.click("#list .more >> nth=0")
    page.wait_for_selector("#why-parts dt")
    assert "Slot 1. It " in page.inner_text("#why-text")
    shares = page.inner_text("#why-parts").split()
    assert sum(int(one[:-1]) for one in shares if one.endswith("%")) in range(98, 103)
    page.keyboard.press("Escape")
    [past, *_] = ask(controlled, "/v1/users/user-4/history")["items"]
    choose_title(page, "#absent", past["title"])
    until(page, "document.querySelector('#answer').textContent !== ''")
    assert "the visitor has had it" in page.inner_text("#answer")


def test_a_hidden_item_is_gone_from_every_surface_until_it_is_undone(open_page, controlled):
    page = open_page("/#user=user-6", server=controlled)
    before = listed(page)
    page.click("#list .more >> nth=0")
    page.wait_for_selector("#similar-list .item")
    with new_list(page):
        page.click("#hide")
    assert before[0] not in listed(page)
    for surface in ("home", "session"):
        body = {"surface": surface, "session": ["item-4"], "k": 59}
        reply = ask(controlled, "/v1/recommend", json.dumps(body))
        assert before[0] not in [item["item_id"] for item in reply["items"]]
    assert page.inner_text("#toast").startswith("Hidden from every list")
    with new_list(page):
        page.click("#undo")
    assert listed(page) == before
    assert page.is_hidden("#toast")
    page.click("#list .more >> nth=0")
    category = page.inner_text("#categories button >> nth=0").removeprefix("Hide ")
    with new_list(page):
        page.click("#categories button >> nth=0")
    query = "&".join(f"id={item_id}" for item_id in listed(page))
    items = ask(controlled, f"/v1/items?{query}")["items"]
    assert all(category not in item["categories"] for item in items)
    with new_list(page):
        page.click("#undo")
    assert listed(page) == before


def test_a_list_is_corrected_and_its_question_answered(open_page, controlled):
    page = open_page("/#user=user-9", server=controlled)
    before = listed(page)
    page.fill("#correction", "no title 4")
    with new_list(page):
        page.press("#correction", "Enter")
    first = listed(page)
    assert set(first).isdisjoint(before)
    assert page.inner_text("#question").endswith("or not?")
    with new_list(page):
        page.click("#answers button >> nth=1")
    assert set(listed(page)).isdisjoint([*before, *first])
    assert "/v1/refine" in page.text_content("#curl")
    with new_list(page):
        page.select_option("#surface", "session")
    assert page.inner_text("#question") == ""


def test_who_may_not_hide_is_told_so(open_page):
    page = open_page("/#user=user-6")
    page.click("#list .more >> nth=0")
    page.click("#hide")
    page.wait_for_selector("#notes.failed")
    assert "--allow-admin" in page.inner_text("#notes")
    assert page.locator("#list .item").count() == 10
