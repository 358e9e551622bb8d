"""The page in headless Chromium, over a server with an online store and a configuration."""

import json

import pytest

from recsys.models.text_search.tokens import words_of
from tests.recsys.content.openai_server import chat_reply, openai_server
from tests.serving.web.try_it_page import (
    ask,
    choose_title,
    listed,
    new_list,
    new_topics,
    serving,
    until,
)

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

[wishes]
model = "scripted"
"""


def read_wish(request):
    """Answer as a language model that knows one wish."""
    known = '{"more": ["Comedy"], "less": null, "days": 7}'
    return chat_reply(known if "gloomy" in str(request["messages"]) else "It is slow.")


@pytest.fixture(scope="module")
def controlled(page_bundles, tmp_path_factory):
    """A server with an online store, rules, and leave to hide items."""
    folder = tmp_path_factory.mktemp("controlled")
    environment = {
        "store": f"sqlite:{folder / 'online'}",
        "config": str(folder / "serving.toml"),
        "allow_admin": "true",
    }
    with openai_server(chat=read_wish) as model:
        address = f'base_url = "{model.base_url}"\n'
        (folder / "serving.toml").write_text(CONFIGURATION + address)
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


def described(page, address):
    query = "&".join(f"id={item_id}" for item_id in listed(page))
    return ask(address, f"/v1/items?{query}")["items"]


def test_a_category_and_a_brand_are_hidden_until_it_is_undone(open_page, controlled):
    page = open_page("/#user=user-6", server=controlled)
    before, cards = listed(page), described(page, controlled)
    place = next(place for place, card in enumerate(cards) if "properties" in card)
    assert cards[place]["properties"] == {"brand": "Acme"}
    for value in (cards[place]["categories"][0], "Acme"):
        page.click(f"#list .more >> nth={place}")
        with new_list(page):
            page.locator("#values button").get_by_text(f"Hide {value}", exact=True).click()
        for item in described(page, controlled):
            assert value not in (*item["categories"], *item.get("properties", {}).values())
        with new_list(page):
            page.click("#undo")
        assert listed(page) == before


def test_a_newcomer_says_less_and_more_sees_why_and_takes_it_back(open_page, controlled):
    page = open_page(server=controlled)
    before, cards = listed(page), described(page, controlled)
    page.fill("#wish", "less of this, more slow comedies, for a week")
    with new_topics(page, 2):
        page.press("#wish", "Enter")
    assert "Since the last list" in page.inner_text("#notes")
    assert "Rules alone read it: the language model" in page.inner_text("#wish-note")
    after = described(page, controlled)
    funny, funny_before = (
        sum("Comedy" in card["categories"] for card in some) for some in (after, cards)
    )
    assert funny > funny_before
    assert before[0] not in listed(page)[:5]
    [less, more] = page.locator("#topics li span:first-child").all_inner_texts()
    assert less == f"less like {' '.join(words_of(cards[0]['title']))}"
    assert more == "more slow comedies"
    facts = page.locator("#topics .when").all_inner_texts()
    assert all("until" in text for text in facts)
    assert "\u201cslow\u201d matches nothing" in facts[1]
    for left, topic in [(1, less), (0, more)]:
        assert f"{topic}: " in page.inner_text("#notes")
        with new_topics(page, left):
            page.click("#topics .remove >> nth=0")
    assert listed(page) == before
    assert page.inner_text("#topics") == "Nothing said yet."
    page.fill("#wish", "nichts gloomy")
    with new_topics(page, 1):
        page.press("#wish", "Enter")
    assert "more Comedy" in page.inner_text("#topics")
    read = "a language model read \u201cnichts gloomy\u201d, until"
    assert read in page.inner_text("#topics .when")
    with new_topics(page, 0):
        page.click("#topics .remove")
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
