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
        "RECSYS_STORE": f"sqlite:{folder / 'online'}",
        "RECSYS_CONFIG": str(folder / "serving.toml"),
        "RECSYS_ALLOW_ADMIN": "true",
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


def test_who_may_not_hide_is_told_so(open_page):
    page = open_page("/#user=user-6")
    page.click("#list .more >> nth=0")
    page.click("#hide")
    page.wait_for_selector("#notes.failed")
    assert "--allow-admin" in page.inner_text("#notes")
    assert page.locator("#list .item").count() == 10


def test_surfaces_ask_for_what_they_need_and_show_their_rules(open_page, controlled):
    page = open_page("/#user=user-4", server=controlled)
    page.wait_for_selector("#surface option >> nth=4", state="attached")
    names = page.eval_on_selector_all("#surface option", "all => all.map(one => one.value)")
    assert names == ["home", "related", "cart", "session", "search", "letter"]
    assert page.inner_text("#force").startswith("Rule launch pins item-9 to slot 2")
    with new_list(page):
        page.select_option("#surface", "cart")
    assert page.inner_text("#notes") == "Add an item to this visit first."
    assert page.inner_text("#force").startswith("Rule spring moves where category = 'even' up by 3")
    with new_list(page):
        choose_title(page, "#search", "Title 31")
    assert page.locator("#list .item").count() == 10
    with new_list(page):
        page.select_option("#surface", "related")
    assert "Choose the item" in page.inner_text("#notes")
    with new_list(page):
        choose_title(page, "#subject", "Title 31")
    until(page, "document.querySelector('#list-title').textContent.startsWith('Similar to')")
    with new_list(page):
        page.select_option("#surface", "search")
    page.fill("#subject", "title 4")
    with new_list(page):
        page.press("#subject", "Enter")
    titles = page.eval_on_selector_all("#list .title", "all => all.map(one => one.textContent)")
    assert titles
    assert all("Title 4" in title for title in titles)
    page.reload()
    page.wait_for_selector("#list .item")
    assert page.input_value("#surface") == "search"
    assert page.input_value("#subject") == "title 4"


def test_a_filter_holds_and_a_wrong_one_is_explained(open_page, controlled):
    page = open_page("/#user=user-4", server=controlled)
    with new_list(page):
        page.fill("#where", "category = 'tens'")
        page.press("#where", "Enter")
    found = listed(page)
    cards = ask(controlled, f"/v1/items?{'&'.join(f'id={one}' for one in found)}")["items"]
    assert found
    assert all("tens" in card["categories"] for card in cards)
    page.fill("#where", "category = ")
    page.press("#where", "Enter")
    page.wait_for_selector("#notes.failed")
    assert "filter.where: character 11" in page.inner_text("#notes")
    until(page, "document.querySelector('#where').getAttribute('aria-invalid') === 'true'")
    assert listed(page) == found
    with new_list(page):
        page.fill("#where", "")
        page.press("#where", "Enter")
    assert page.get_attribute("#where", "aria-invalid") == "false"


SHARED = """(() => {
    const ids = list => [...document.querySelectorAll(list)].map(row => row.dataset.id);
    const others = ids("#other-list .item");
    return `${ids("#list .item").filter(id => others.includes(id)).length} items in both lists`;
})()"""


def test_two_lists_stand_side_by_side_and_show_what_only_one_has(open_page, controlled):
    page = open_page("/#user=user-4", server=controlled, width=1680)
    assert page.inner_text("#strength") == "as set"
    page.click("#compare")
    page.wait_for_selector("#other-list .item")
    unnamed = "all => all.filter(one => !one.labels.length || !one.labels[0].textContent.trim())"
    assert page.eval_on_selector_all("#columns :is(input, select)", unnamed) == []
    until(page, "document.querySelector('#shared').textContent === '10 items in both lists'")
    with new_list(page):
        page.focus("#other-diversity")
        for _ in range(10):
            page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#other-strength').textContent === '1.0'")
    until(page, "document.querySelector('#shared').textContent !== '10 items in both lists'")
    # Each press asks for a list; the last one's is the one that stays.
    page.wait_for_load_state("networkidle")
    until(page, f"document.querySelector('#shared').textContent === {SHARED}")
    ids = "rows => rows.map(row => row.dataset.id)"
    others = page.eval_on_selector_all("#other-list .item", ids)
    both = set(others) & set(listed(page))
    assert page.inner_text("#shared") == f"{len(both)} items in both lists"
    only = page.eval_on_selector_all("#columns .item.only", ids)
    assert set(only) == set(others) ^ set(listed(page))
    page.reload()
    page.wait_for_selector("#other-list .item")
    assert page.eval_on_selector_all("#other-list .item", ids) == others
    with new_list(page):
        page.click("#other-own")
    until(page, "document.querySelector('#shared').textContent === '10 items in both lists'")
    page.click("#compare")
    assert page.locator("#other-list").count() == 0
    assert "compare" not in page.url


def test_the_time_of_each_stage_is_shown(open_page, controlled):
    page = open_page("/#user=user-4", server=controlled)
    page.click("summary:has-text('Timings')")
    names = page.inner_text("#stages").split("\n")
    assert {"hydrate", "filter", "retrieve", "network and page"} <= set(names)
    assert sum(name.endswith(" ms") for name in names) >= 5
