"""The page as text: whole, escaped, the same again, and never in need of what is not there."""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from pipelines.pages.figures import counted
from pipelines.pages.page import report_html

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "{{ 7 * 7 }} {% raw %}",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 family \U0001f600",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed",
    "W" * 300,
    'it\'s "quoted" & more',
)
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """Collects what a page is made of, and holds that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.cells: list[str] = []
        self.faults: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[name] for name in ("href", "src") if name in values]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "bdi":
            self.cells.append(data)


def specs(page: str) -> dict:
    found = re.search(r'<script id="specs" type="application/json">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page(plain_report) -> str:
    return report_html(plain_report)


def test_page_is_whole_and_its_headings_are_in_order(page):
    outline = Outline(page)
    assert (outline.open, outline.faults) == ([], [])
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    steps = zip(outline.headings, outline.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps)
    assert len(set(outline.ids)) == len(outline.ids)
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)


def test_page_asks_for_nothing(page):
    head = page.split("<body>")[0]
    assert "default-src 'none'" in head
    assert not re.search(r"url\(|@import", head)
    assert all(link.startswith("#") for link in Outline(page).links)


def test_every_number_of_the_report_stands_on_the_page(page, plain_report):
    text = html.unescape(page)
    for split in ("validation", "test"):
        for model in plain_report.models:
            interval = plain_report.interval(model, split)
            for value in interval[:3]:
                assert f"{value:.4f}" in text
    for test in plain_report.measured("test").comparisons:
        if test.metric == plain_report.primary:
            assert f"{abs(test.difference):.4f}" in text
    drawn = set(re.findall(r'data-chart="([^"]+)"', page))
    assert drawn == set(specs(page))
    assert {"overview", "cutoffs", "differences", "curve-loss", "slices-category"} <= drawn
    assert "1-5" in page.split("No users in:")[1].split(".")[0]


def test_titles_are_only_text(reported):
    page = report_html(
        reported(
            titles=HOSTILE,
            num_items=len(HOSTILE),
            categories=HOSTILE,
            title=HOSTILE[1],
            warnings=HOSTILE,
            quarantined=((HOSTILE[0], 3),),
        )
    )
    outline = Outline(page)
    assert outline.faults == []
    assert "img" not in outline.tags
    assert outline.tags.count("script") == 3
    assert set(HOSTILE) <= set(outline.cells)
    assert "49" not in {cell.strip() for cell in outline.cells}
    assert "\U0001f600" in json.dumps(specs(page)["slices-category"], ensure_ascii=False)


@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ({"has_times": False}, ["no timestamps, only an order"], []),
        ({"categories": ()}, ['id="slices"'], ["By category", "Miscalibration"]),
        (
            {"models": ("popularity",)},
            ["The model <strong>popularity</strong>", "Examples"],
            ['href="#differences"', 'href="#winners"', 'href="#training"'],
        ),
        ({"models": ("popularity", "brand_new")}, ["brand new"], ['href="#training"']),
        ({"num_users": 3}, ["Only 3 users were measured"], []),
        ({"orders": ("given", "shuffled")}, ['id="ties"', "ties shuffled"], []),
        ({"ranker": False}, ['id="winners"'], ['href="#ranker"', "Expert load"]),
        ({"dataset": "movielens-100k"}, ["Save the settings"], ["set your files"]),
    ],
)
def test_what_is_not_there_is_left_out(reported, options, present, absent):
    page = report_html(reported(**options))
    outline = Outline(page)
    assert (outline.open, outline.faults) == ([], [])
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    for words in present:
        assert words in page, words
    for words in absent:
        assert words not in page, words


def test_the_ranker_its_trunks_and_who_is_routed_where_are_told(page):
    assert "The ranker's order is served" in page.replace("&#39;", "'")
    assert 'data-label="AUC">0.880</td>' in page
    # A task of one class has no AUC.
    assert 'data-label="AUC">-</td>' in page
    assert "\u22120.0010 \u00b1 0.0020" in page.replace("&plusmn;", "\u00b1")
    assert specs(page)["routing-sparse-category"]["data"]
    assert specs(page)["examined"]["data"]
    assert "slot 3" in page


def test_equal_evaluations_give_equal_bytes(reported, page):
    assert report_html(reported()) == page


def test_size_follows_models_and_not_users(reported, page):
    many = report_html(reported(num_users=3_000, num_items=500, num_resamples=100))
    assert len(many.encode()) < len(page.encode()) + 40_000
    assert len(many.encode()) < 1_000_000


def test_ids_of_users_stay_out(plain_report):
    written = json.dumps(plain_report.as_json())
    assert "user_id" not in written
    assert "user_row" not in written


def test_labels_of_slices_are_short_and_never_equal():
    names = ["W" * 30, "W" * 40, "Drama", "\u05e9\u05dc\u05d5\u05dd"]
    labels = counted(names, [1, 1, 2_000, 3])
    assert labels[0] == "W" * 15 + "... (1)"
    assert labels[2] == "Drama (2,000)"
    assert labels[3] == "\u2068\u05e9\u05dc\u05d5\u05dd\u2069 (3)"
    assert len(set(labels)) == 4
