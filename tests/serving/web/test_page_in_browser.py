"""The page in headless Chromium: what a person sees, by mouse and by keyboard."""

import json
import shlex

import pytest

from tests.serving.web.try_it_page import (
    CATEGORY,
    HOSTILE,
    ask,
    choose_user,
    listed,
    moves,
    new_list,
    serving,
    until,
)

pytestmark = pytest.mark.slow


def test_hostile_titles_categories_and_ids_are_only_text(open_page):
    page = open_page("/#user=%3Ci%3Efirst%3C%2Fi%3E&k=50")
    page.wait_for_selector("#history .event")
    titles = page.eval_on_selector_all(
        "#list .title, #history .link", "all => all.map(one => one.textContent)"
    )
    shown = [title for title in titles if title in HOSTILE]
    assert len(shown) >= 5
    page.fill("#search", "img src onerror")
    page.wait_for_selector("#search-choices [role=option]")
    with new_list(page):
        page.click("#search-choices [role=option]")
    assert page.inner_text("#visit .chip span") == HOSTILE[0]
    page.click("#list .more >> nth=0")
    page.wait_for_selector("#similar-list .item")
    assert page.inner_text("#list-title") == "Recommended for user <i>first</i>"
    assert (
        page.locator("#list img, #list script, #list h1, #history i, h2 i, option b").count() == 0
    )
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_click_adds_the_item_and_marks_what_moved(open_page):
    page = open_page()
    choose_user(page, "user-4")
    before = listed(page)
    assert set(moves(page)) == {""}
    with new_list(page):
        page.locator("#list .title").nth(2).click()
    after = listed(page)
    assert before[2] not in after
    assert page.locator("#visit .chip").count() == 1
    expected = []
    for place, item in enumerate(after):
        was = before.index(item) if item in before else None
        if was is None:
            expected.append("new")
        elif was == place:
            expected.append("")
        else:
            expected.append(f"\u25b2{was - place}" if was > place else f"\u25bc{place - was}")
    assert moves(page) == expected
    assert "new" in expected
    assert "Since the last list" in page.inner_text("#notes")
    with new_list(page):
        page.click("#visit .remove")
    assert listed(page) == before
    assert page.evaluate("document.activeElement.id") == "search"


def test_everything_works_by_keyboard(open_page, address):
    page = open_page()
    page.focus("#user")
    page.keyboard.type("user-2")
    page.wait_for_selector("#user-choices [role=option]")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#user", "aria-activedescendant") == "user-choices-0"
    page.keyboard.press("ArrowUp")
    assert page.get_attribute("#user", "aria-activedescendant") is None
    page.keyboard.press("ArrowDown")
    with new_list(page):
        page.keyboard.press("Enter")
    assert page.input_value("#user") == "user-2"
    past = ask(address, "/v1/users/user-2/history")["items"]
    until(page, f"document.querySelectorAll('#history .event').length == {len(past)}")
    assert page.inner_text("#history .link >> nth=0") == past[0]["title"]

    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("title 31")
    page.wait_for_selector("#search-choices [role=option]")
    assert page.get_attribute("#search", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert page.is_hidden("#search-choices")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#search-choices [role=option]")
    page.keyboard.press("ArrowDown")
    with new_list(page):
        page.keyboard.press("Enter")
    assert "Title 31" in page.inner_text("#visit")

    page.focus("#list .title >> nth=3")
    with new_list(page):
        page.keyboard.press("Enter")
    # The row that was chosen is gone; focus stays in the list, at its place.
    assert (
        page.evaluate(
            "[...document.querySelectorAll('#list .title')].indexOf(document.activeElement)"
        )
        == 3
    )
    assert page.inner_text("#status").startswith("List updated: ")


def test_curl_box_holds_the_request_that_was_sent(open_page, address):
    page = open_page("/#user=%3Ci%3Efirst%3C%2Fi%3E&item=item-7")
    page.wait_for_selector("#category option >> nth=1", state="attached")
    with new_list(page):
        page.select_option("#category", CATEGORY)
    page.click("summary:has-text('exact request')")
    words = shlex.split(page.inner_text("#curl").replace("\\\n", " "))
    assert words[:3] == ["curl", "-s", f"{address}/v1/recommend"]
    body = words[words.index("-d") + 1]
    assert json.loads(body) == {
        "user_id": "<i>first</i>",
        "session": ["item-7"],
        "filter": {"categories": [CATEGORY]},
        "k": 10,
        "explain": True,
    }
    reply = ask(address, "/v1/recommend", body)
    assert [item["item_id"] for item in reply["items"]] == listed(page)
    query = "&".join(f"id={item}" for item in listed(page))
    assert all(
        CATEGORY in item["categories"] for item in ask(address, f"/v1/items?{query}")["items"]
    )


def test_a_server_with_keys_is_asked_with_the_one_that_is_given(open_page):
    page = open_page(asks_for="rk_right")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "rk_wrong")
    page.press("#key", "Enter")
    until(page, "document.querySelector('#key-note').textContent.includes('does not know')")
    page.fill("#key", " rk_right\u4e16 ")
    page.click("#key-use")
    page.wait_for_selector("#list .item")
    assert page.is_hidden("#key-dialog")
    page.click("summary:has-text('exact request')")
    with new_list(page):
        page.select_option("#size", "20")
    assert "rk_right" not in page.inner_text("#curl")
    assert "Bearer $RECSYS_KEY" in page.inner_text("#curl")
    page.reload()
    page.wait_for_selector("#list .item")


def test_page_works_where_users_are_hidden(open_page, page_bundles):
    with serving(page_bundles, expose_users="false") as (server, _):
        page = open_page(server=server)
        until(page, "document.querySelector('#surprise').disabled")
        assert "users" not in page.inner_text("#about")
        choose_user(page, "user-4")
        until(page, "document.querySelector('#history').textContent.includes('not show')")
        assert page.locator("#list .item").count() == 10


def test_a_server_that_is_gone_is_said_so_and_the_list_stays(open_page, page_bundles):
    with serving(page_bundles) as (server, process):
        page = open_page(server=server)
        before = listed(page)
        process.terminate()
        process.wait()
        page.click("#list .title >> nth=0")
        page.wait_for_selector("#notes.failed")
        assert "does not answer" in page.inner_text("#notes")
        assert listed(page) == before
