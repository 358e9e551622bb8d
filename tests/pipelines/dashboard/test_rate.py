"""Page Rate over a real workspace: people over HTTP, a scripted language model by the command."""

import json
import re
import shutil
import time
import zlib
from contextlib import contextmanager
from threading import Thread

import numpy as np
import polars as pl
import pytest
from polars import selectors
from starlette.testclient import TestClient
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.dashboard.context import Context
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.rate import draw_lists, read_rubric
from pipelines.dashboard.web.access import AccessRules
from pipelines.dashboard.web.app import Site, create_app
from pipelines.dashboard.workspaces.read import read_workspace
from pipelines.dashboard.workspaces.stores import Places, Stores
from tests.pipelines.dashboard.conftest import RUBRIC
from tests.recsys.content.openai_server import Reply, chat_reply, openai_server


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
    assert [row[:2] for row in rows] == [["fits", "people"], ["varied", "people"]]
    assert [(row[3], row[4]) for row in rows] == [(4, 1.0), (4, 1.0)]
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
    assert sorted(ratings.by_rater) == [f"person {name}" for name in names]
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
        rubric.write_text(RUBRIC.replace("weight = 3", "weigth = 3"))
        reply = client.get("/api/page/rate")
        assert (reply.status_code, "weigth" in reply.json()["error"]) == (400, True), reply.text
        rubric.unlink()
        assert client.get("/api/page/rate").status_code == 400
    with dashboard(workspace, rubric, host="0.0.0.0", public=True) as client:
        assert client.post("/api/save/rate", params=given, json={}).status_code == 403
    assert not list(rubric.parent.glob("*.answers/*"))


def compare(workspace, rubric, server, *others):
    endpoint = {
        "base_url": f'"{server.base_url}"',
        "model": '"judge"',
        "max_retries": 0,
        "timeout_seconds": 0.5,
    }
    settings = [f"enrichment.endpoint.{name}={value}" for name, value in endpoint.items()]
    settings += ['enrichment.model="endpoint"', "enrichment.token_budget=1000000"]
    words = ["compare", str(workspace), *map(str, others), "--rubric", str(rubric)]
    return CliRunner().invoke(app, [*words, *(part for one in settings for part in ("--set", one))])


def test_a_model_rates_the_lists_that_people_see_and_titles_tell_it_nothing(workspace, rubric):
    """It agrees with Ann on fits, cannot tell on varied, and obeys the title of some lists."""
    read = []

    def judge(request):
        system, user = (one["content"] for one in request["messages"])
        assert "Most items fit what the user chose lately. true, false or null." in system
        text = json.loads(user.split("\n")[1])
        read.append(text)
        if obeys(text):
            return chat_reply('{"fits": "as the title says", "varied": true}')
        return chat_reply(json.dumps({"fits": len(text) % 2 == 0, "varied": None}))

    def obeys(text):
        return zlib.crc32(text.encode()) % 3 == 0

    with openai_server(chat=judge) as server:
        result = compare(workspace, rubric, server)
        assert result.exit_code == 0, result.output
        requests = len(read)
        # Nothing is paid for twice.
        assert compare(workspace, rubric, server).exit_code == 0
        assert len(read) == requests
    words = " ".join(result.output.split())
    assert "can stand in for people on nothing; it cannot on fits, varied" in words
    _, ratings = read_rubric(rubric)
    (model,) = ratings.models
    said = {text: ratings.of(model, text) for text in dict.fromkeys(read)}
    wanted = {text: {} if obeys(text) else {"fits": len(text) % 2 == 0} for text in said}
    assert said == wanted
    assert {} in wanted.values()
    with dashboard(workspace, rubric) as client:
        titles = rate(client, "Ann", by_length)
        page = client.get("/api/page/rate").json()
    assert all(any(set(one.split()) <= set(text.split()) for text in read) for one in titles)
    assert [row[1] for row in block(page, "table")["rows"]] == ["people", model] * 2


def test_two_runs_are_compared_by_what_a_model_says_of_their_lists(workspace, rubric, tmp_path):
    """The other run turns every list round, and the model wants the later name first."""
    other = shutil.copytree(workspace, tmp_path / "other", symlinks=True)
    table = other / "evaluate" / "per_user_given_validation.parquet"
    lists = selectors.starts_with("top_k_")
    turned = pl.read_parquet(table).with_columns(lists.list.head(10).list.reverse())
    table.unlink()
    turned.write_parquet(table)

    def fits(text):
        names = re.findall(r"\d+\. ([^;]+)", text.partition("Recommended:")[2])
        return names[0] > names[-1]

    def judge(request):
        text = json.loads(request["messages"][1]["content"].split("\n")[1])
        return chat_reply(json.dumps({"fits": fits(text), "varied": None}))

    def passed(run):
        return np.mean([fits(one.text) for one in draw_lists(read_workspace(run), criteria)])

    criteria, _ = read_rubric(rubric)
    with openai_server(chat=judge) as server:
        result = compare(workspace, rubric, server, other)
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    difference = passed(other) - passed(workspace)
    assert difference != 0
    assert f"other - {workspace.name}" in words
    assert f"{difference:+.4f}" in words
    assert "lists, adjusted by holm, 4 users" in words


def test_a_model_that_hangs_or_is_not_there_is_no_answer(workspace, rubric):
    with openai_server(chat=lambda request: time.sleep(1) or Reply(None)) as server:
        result = compare(workspace, rubric, server)
    assert result.exit_code == 2
    assert "rated 0 of 4 lists" in " ".join(result.output.split())
    assert read_rubric(rubric)[1].by_rater == {}
    result = CliRunner().invoke(app, ["compare", str(workspace), "--rubric", str(rubric)])
    assert "set enrichment.model" in " ".join(result.output.split())
