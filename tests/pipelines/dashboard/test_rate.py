"""Page Rate over a real workspace, over HTTP; agreement against a slow count of pairs."""

from contextlib import contextmanager
from itertools import permutations
from threading import Thread

import numpy as np
import pytest
from starlette.testclient import TestClient

from pipelines.dashboard.context import Context
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.rate import read_rubric
from pipelines.dashboard.rubric import Criterion, Ratings, Rubric
from pipelines.dashboard.web.access import AccessRules
from pipelines.dashboard.web.app import Site, create_app
from pipelines.dashboard.workspaces.stores import Places, Stores
from tests.pipelines.dashboard.conftest import RUBRIC


@pytest.fixture
def rubric(tmp_path, monkeypatch):
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rubric.toml").write_text(RUBRIC, encoding="utf-8")
    return tmp_path / "rubric.toml"


@contextmanager
def dashboard(workspace, rubric, **access):
    context = Context(stores=Stores(Places(roots=[workspace])), rubric=rubric)
    site = Site(context=context, pages=PAGES, access=AccessRules(**access))
    with TestClient(create_app(site), base_url="http://127.0.0.1:8100") as client:
        yield client


def block(page, kind):
    return next((one for one in page["blocks"] if one["kind"] == kind), None)


def rate(client, rater, decide, stop=99):
    """Answer what is left as the page does, list after list; returns the texts of those rated."""
    rating = block(client.get("/api/page/rate", params={"rater": rater}).json(), "rating")
    texts = []
    for shown, answers in zip(rating["lists"], rating["answers"], strict=True):
        left = [name for name, _ in rating["questions"] if name not in answers]
        if not left or len(texts) == stop:
            continue
        entries = [entry for part in shown["lists"] for entry in part["entries"]]
        texts.append(" ".join(entry["title"] for entry in entries))
        for name in left:
            given = {**rating["parameters"], "list": shown["key"], "criterion": name}
            given["answer"] = decide(name, texts[-1])
            reply = client.post("/api/save/rate", params=given, json={})
            assert reply.status_code == 200, reply.text
    return texts


def by_length(name, text):
    return "yes" if (name == "fits") == (len(text) % 2 == 0) else "no"


def test_people_rate_the_same_lists_and_continue_where_they_stopped(workspace, rubric):
    with dashboard(workspace, rubric) as client:
        first = rate(client, "Ann", by_length, stop=2)
        others = rate(client, "Ann", by_length)
        assert (len(first), len(others), len({*first, *others})) == (2, 2, 4)
        assert rate(client, "Ann", by_length) == []
        assert rate(client, "Bob", by_length) == [*first, *others]
        page = client.get("/api/page/rate").json()
    rows = block(page, "table")["rows"]
    assert [row[0] for row in rows] == ["fits", "varied"]
    assert [(row[2], row[3]) for row in rows] == [(4, 1.0), (4, 1.0)]
    name = next(one for one in page["controls"] if one["name"] == "rater")
    assert [one["value"] for one in name["options"]] == ["Ann", "Bob"]


def test_two_raters_at_once_lose_no_answer(workspace, rubric):
    with dashboard(workspace, rubric) as client:
        names = ["Ann", "Bob", "Cy"]
        threads = [Thread(target=rate, args=(client, name, by_length)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _, ratings = read_rubric(rubric)
    assert sorted(ratings.by_rater) == names
    for lists in ratings.by_rater.values():
        assert [len(answers) for answers in lists.values()] == [2] * 4


def test_what_cannot_be_is_refused_in_words_and_keeps_nothing(workspace, rubric):
    with dashboard(workspace, rubric) as client:
        page = client.get("/api/page/rate?rater=Ann").json()
        rating = block(page, "rating")
        given = {**rating["parameters"], "criterion": "fits", "answer": "yes"}
        given["list"] = rating["lists"][0]["key"]
        for name, value, words in (
            ("criterion", "nice", "none of: fits, varied"),
            ("answer", "maybe", "none of: no, yes"),
            ("list", "abc", "list is 'abc'"),
            ("rater", "", "rater is empty"),
            ("rater", "x" * 99, "at most 60"),
        ):
            reply = client.post("/api/save/rate", params={**given, name: value}, json={})
            assert (reply.status_code, words in reply.json()["error"]) == (400, True), reply.text
        elsewhere = {"origin": "http://elsewhere.example"}
        reply = client.post("/api/save/rate", params=given, json={}, headers=elsewhere)
        assert reply.status_code == 403
        assert client.post("/api/save/why", params=given, json={}).status_code == 404
        rubric.write_text(RUBRIC.replace("num_lists", "num_list"))
        reply = client.get("/api/page/rate")
        assert (reply.status_code, "num_list" in reply.json()["error"]) == (400, True), reply.text
        rubric.unlink()
        assert client.get("/api/page/rate").status_code == 400
    with dashboard(workspace, rubric, host="0.0.0.0", public=True) as client:
        assert client.post("/api/save/rate", params=given, json={}).status_code == 403
    assert not list(rubric.parent.glob("*.answers.jsonl"))


FITS = Criterion(name="fits", description="Most items fit.")
VARIED = Criterion(name="varied", description="No two are the same.")
CRITERIA = Rubric(criteria=(FITS, VARIED))


def test_agreement_is_that_of_a_slow_count(tmp_path):
    """Three people err now and then, and leave lists out."""
    rng, ratings = np.random.default_rng(0), Ratings(tmp_path / "answers.jsonl", CRITERIA)
    for key in map(str, range(40)):
        truth = rng.random() < 0.6
        for rater in ("ann", "bob", "cy"):
            if rng.random() < 0.8:
                passes = bool(truth == (rng.random() < 0.75))
                ratings.by_rater.setdefault(rater, {})[key] = {"fits": passes}
    votes = []
    for key in map(str, range(40)):
        said = [lists[key]["fits"] for lists in ratings.by_rater.values() if key in lists]
        pairs = list(permutations(said, 2))
        votes += [(a, b, 1 / len(pairs)) for a, b in pairs]
    total = sum(weight for *_, weight in votes)
    equal = sum(weight for a, b, weight in votes if a == b) / total
    yes = sum(weight for a, _, weight in votes if a) / total
    chance = yes**2 + (1 - yes) ** 2
    found = ratings.agreement("fits")
    assert found.num_lists == round(total)
    assert (found.share, found.kappa) == pytest.approx((equal, (equal - chance) / (1 - chance)))
    assert ratings.agreement("varied") is None


def test_answers_survive_a_cut_line_and_other_words_count_for_nothing(tmp_path):
    path = tmp_path / "answers.jsonl"
    ratings, other = Ratings(path, CRITERIA), Ratings(path, CRITERIA)
    ratings.keep("Ann", "x", "fits", True)
    other.keep("Bob", "x", "fits", False)
    ratings.keep("Ann", "x", "varied", True)
    ratings.keep("Ann", "x", "fits", False)
    whole = path.read_bytes()
    path.write_bytes(whole + b"7\n\xff\n" + whole.splitlines()[0][:50])
    Ratings(path, CRITERIA).keep("Ann", "y", "fits", True)
    found = Ratings(path, CRITERIA)
    assert found.of("Ann", "x") == {"fits": False, "varied": True}
    assert found.of("Ann", "y") == {"fits": True}
    assert found.of("Bob", "x") == {"fits": False}
    reworded = Criterion(name="fits", description="All items fit.")
    assert Ratings(path, Rubric(criteria=(reworded,))).by_rater == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"criteria": ()}, "at least one table"),
        ({"criteria": (FITS, FITS)}, "fits, fits"),
        ({"criteria": (FITS,), "k": 21}, "k must be in"),
    ],
)
def test_a_rubric_that_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Rubric(**settings)
