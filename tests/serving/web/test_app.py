import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from recsys.kernels.one_query.library import load_library
from serving.bundle.manifest import read_manifest
from serving.log import LOGGER
from serving.recommend import Recommender
from serving.routes import find
from serving.settings import Settings
from tests.serving.application import create_app

JSON = {"content-type": "application/json"}
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def client(released):
    app = create_app(Settings(bundles=released, max_body_bytes=LIMIT))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def refused(response, status):
    """The message of a refusal, after a look at its form."""
    assert response.status_code == status, response.text
    error = json.loads(response.content)["error"]
    assert {"code", "message"} <= error.keys()
    return error["message"]


def test_reply_has_every_field_of_the_contract(client, released):
    reply = client.post("/v1/recommend", json={"user_id": "user-1", "k": 3}).json()
    # What is absent is left out: here a fallback, reasons, an adapter and a ranker.
    assert list(reply) == ["request_id", "items", "served_by", "degraded", "timings_ms"]
    assert len(reply["items"]) == 3
    named = ["item_id", "score", "source", "title", "categories", "semantic_id"]
    assert list(reply["items"][0]) == named
    assert reply["served_by"] == {
        "bundle": "v1",
        "index": "flat-40x8",
        "semantic_ids": read_manifest(released / "current")[0].semantic_ids.version,
        "profile": "fast",
    }
    assert reply["degraded"] == []
    explained = client.post("/v1/recommend", json={"user_id": "nobody", "k": 1, "explain": True})
    assert list(explained.json()["items"][0]) == [*named, "reason", "contributions"]
    assert explained.json()["fallback"] == "popularity"
    assert explained.json()["degraded"] == [{"code": "unknown_user"}, {"code": "empty_history"}]
    again = client.post("/v1/recommend", json={"user_id": "user-1", "k": 3}).json()
    assert again["request_id"] != reply["request_id"]
    assert again["items"] == reply["items"]


def test_readiness_says_what_answers(client):
    assert client.get("/readyz").json()["compiled"] == (load_library().reason or "yes")


def test_http_python_and_batch_scores_are_bit_equal(client, released):
    users = [*(f"user-{row}" for row in range(1, 13)), "nobody"]
    frame = Recommender.load(released / "current").recommend(users, k=9)
    single = [client.post("/v1/recommend", json={"user_id": user, "k": 9}).json() for user in users]
    requests = {"requests": [{"user_id": user, "k": 9} for user in users]}
    batch = client.post("/v1/recommend:batch", json=requests).json()["replies"]
    for replies in (single, batch):
        items = [item for reply in replies for item in reply["items"]]
        assert [item["item_id"] for item in items] == frame["item_id"].to_list()
        assert [item["score"] for item in items] == frame["score"].to_list()
        assert [item["source"] for item in items] == frame["source"].to_list()
        assert [item["semantic_id"] for item in items] == frame["semantic_id"].to_list()


def test_unknown_item_is_404_and_named(client):
    assert "'no such item'" in refused(client.get("/v1/similar/no such item"), 404)
    assert "'a/b'" in refused(client.get("/v1/similar/a%2Fb"), 404)
    body = {"requests": [{"surface": "related", "item_id": "zz"}, {"user_id": "user-1"}]}
    replies = client.post("/v1/recommend:batch", json=body).json()["replies"]
    assert replies[0]["error"]["code"] == "unknown_item"
    assert len(replies[1]["items"]) == 20


def test_filter_that_does_not_fit_the_bundle_is_422_and_says_what_does(client):
    body = {"filter": {"where": "price < 50"}}
    response = client.post("/v1/recommend", json=body)
    message = refused(response, 422)
    assert message.startswith("filter.where: character 1: items of bundle v1 have no property 'pr")
    assert "they have category, item_id" in message
    error = response.json()["error"]
    assert error["code"] == "unknown_property"
    assert error["fields"][0]["field"] == "filter.where"
    replies = client.post("/v1/recommend:batch", json={"requests": [body, {}]}).json()["replies"]
    assert replies[0]["error"] == error
    assert replies[1]["items"]
    wrong = client.post("/v1/recommend", json={"filter": {"where": "category < 'a'"}})
    assert wrong.json()["error"]["code"] == "invalid_filter"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"k": 0}, "k: Input should be greater than or equal to 1"),
        ({"k": 10**9}, "k: Input should be less than or equal to 1000"),
        ({"k": "2"}, "k: Input should be a valid integer"),
        ({"k": None}, "k: Input should be a valid integer"),
        ({"user_id": ""}, "user_id: String should have at least 1 character"),
        ({"user_id": "x" * 513}, "user_id: String should have at most 512 characters"),
        ({"session": ["x"] * 10_001}, "session: List should have at most 10000 items"),
        ({"session": [None]}, "session.0: Input should be a valid string"),
        ({"surface": "checkout"}, "unknown surface"),
        ({"surface": "related"}, "kind 'related' and needs item_id"),
        ({"item_id": "item-1"}, "takes no item_id; put it into session"),
        ({"filter": {"brand": "x"}}, "filter.brand: not a field of this request"),
        ({"filter": {"where": "price < "}}, "filter.where: character 9: expected a number"),
        ({"filter": {"where": "a" * 10_240}}, "at most 4096 characters"),
        ({"diversity": 1.5}, "diversity: Input should be less than or equal to 1"),
        ({"context": {"unix_time": -1}}, "context.unix_time: "),
        ({"k": 101, "explain": True}, "explain takes k of at most 100, got 101"),
        ({"\u4e16" * 200: 1, "k": 0}, "(and 1 more)"),
        ([], "body: must be a JSON object"),
    ],
)
def test_wrong_fields_are_422_and_named(client, body, message):
    response = client.post("/v1/recommend", content=json.dumps(body), headers=JSON)
    assert message in refused(response, 422)


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/recommend:batch"])
def test_bodies_that_are_not_sound_json_are_refused(client, path):
    for body in (
        *(b'{"k": NaN}', b'{"k": -Infinity}', b'{"k": 1e400}', b'{"k": ' + b"9" * 5_000 + b"}"),
        *(
            b'{"user_id": "\\ud800"}',
            b'{"user_id": "\xc0\x80"}',
            b"[" * 200_000,
            b'{"a":' * 100_000,
        ),
        *(b'\xef\xbb\xbf{"k": 1}', '{"k": 1}'.encode("utf-16"), b"", b"{} {}", b"user_id=user-1"),
    ):
        response = client.post(path, content=body, headers=JSON)
        assert response.status_code in (400, 422), body[:50]
        refused(response, response.status_code)
        assert "NaN" not in response.text


def test_other_content_types_and_compression_are_415(client):
    sound = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/recommend", content=b"{}", headers=sound).status_code == 200
    for headers in ({"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
        refused(client.post("/v1/recommend", content=b"{}", headers=headers), 415)


def test_10000_ids_are_answered_and_unknown_ones_change_no_list(client):
    latest = [f"item-{1 + n % 20}" for n in range(200)]
    unknown = [f"unknown-{n}" for n in range(9_800)]
    bodies = [
        {"session": latest, "exclude": ["item-30"]},
        {"session": [*unknown, *latest], "exclude": ["item-30", *unknown]},
        {"session": latest * 50, "exclude": ["item-30"] * 10_000},
    ]
    replies = [client.post("/v1/recommend", json=body).json() for body in bodies]
    assert replies[0]["items"] == replies[1]["items"]
    assert not {item["item_id"] for item in replies[2]["items"]} & {*latest, "item-30"}


def test_batch_errors_name_the_request(client):
    body = {"requests": [{"k": 5}, {"k": 0}]}
    message = refused(client.post("/v1/recommend:batch", json=body), 422)
    assert message.startswith("requests.1.k: ")
    refused(client.post("/v1/recommend:batch", json={"requests": []}), 422)
    refused(client.post("/v1/recommend:batch", json={"requests": [{}] * 1001}), 422)
    many = {"requests": [{"k": 1000}] * 20 + [{"k": 1}]}
    message = refused(client.post("/v1/recommend:batch", json=many), 422)
    assert "adds up to 20001; a batch may have 20000" in message


def test_unknown_routes_and_methods_are_4xx(client):
    assert "GET / lists the routes" in refused(client.get("/v2/recommend"), 404)
    refused(client.get("/v1/recommend"), 405)
    wrong = client.get("/v1/recommend")
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("user_id", ["topics", "history", "a/topics/topics", ""])
def test_an_id_may_be_the_end_of_another_route(user_id):
    route = find("GET", f"/v1/users/{user_id}/topics")
    assert route is not None
    assert (route.name, route.value(f"/v1/users/{user_id}/topics")) == ("topics", user_id)
    forget = find("DELETE", "/v1/users/topics")
    assert forget is not None
    assert (forget.path, forget.value("/v1/users/topics")) == ("/v1/users/{user_id}", "topics")


def test_health_links_and_schema(client):
    assert client.get("/healthz").json() == {"status": "alive"}
    ready = client.get("/readyz").json()
    assert (ready["status"], ready["bundle"], ready["num_items"]) == ("ready", "v1", 40)
    assert client.get("/").json()["recommend"] == "POST /v1/recommend"
    schema = client.get("/openapi.json").json()
    body = schema["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/Request"}
    described = schema["components"]["schemas"]["Request"]
    assert described["properties"].keys() >= {"user_id", "session", "k", "filter"}


def test_fault_of_our_own_is_a_plain_500_and_logged(client, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Recommender, "make", broken)
    with caplog.at_level(logging.ERROR, logger=LOGGER.name):
        response = client.post("/v1/recommend", json={})
    assert "secret" not in response.text
    refused(response, 500)
    assert "secret detail" in caplog.records[-1].fields["error"]


def test_start_without_a_bundle_says_what_to_do(tmp_path, released):
    with pytest.raises(ValueError, match=r"no bundle to serve.*recsys run.*RECSYS_BUNDLES"):
        create_app(Settings(bundles=tmp_path))
    (tmp_path / "bundle-v7").mkdir()
    with pytest.raises(ValueError, match="found bundle-v7, none published"):
        create_app(Settings(bundles=tmp_path))


ids = st.text(max_size=30) | st.sampled_from(["user-1", "item-1", "item-2"])
fields = st.fixed_dictionaries(
    {},
    optional={
        "surface": st.sampled_from(["home", "related", "x"]),
        "user_id": st.none() | ids,
        "session": st.none() | st.lists(ids, max_size=20),
        "item_id": st.none() | ids,
        "context": st.fixed_dictionaries({}, optional={"unix_time": st.none() | st.integers()}),
        "k": st.integers(-2, 1100),
        "filter": st.fixed_dictionaries({}, optional={"categories": st.lists(ids, max_size=5)}),
        "exclude": st.lists(ids, max_size=20),
        "explain": st.booleans(),
    },
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=fields | anything | st.dictionaries(st.sampled_from(["k", "session", "user_id"]), anything)
)
def test_any_json_is_answered_or_refused_never_5xx(client, body):
    content = json.dumps(body).encode()
    response = client.post("/v1/recommend", content=content, headers=JSON)
    assert response.status_code in (200, 400, 404, 422), response.text
    assert json.loads(response.content)
