import json
import logging
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from serving.bundle.manifest import publish, read_manifest
from serving.log import LOGGER
from serving.recommend import Recommender
from serving.schemas import Request, to_json
from serving.settings import ServingOptions, Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

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


def test_similar_over_http_equals_the_surface(client):
    reply = client.get("/v1/similar/item-4", params={"k": 5}).json()
    request = {"surface": "similar", "item_id": "item-4", "k": 5}
    assert reply["items"] == client.post("/v1/recommend", json=request).json()["items"]
    assert len(client.get("/v1/similar/item-4").json()["items"]) == 20


def test_unknown_item_is_404_and_named(client):
    assert "'no such item'" in refused(client.get("/v1/similar/no such item"), 404)
    assert "'a/b'" in refused(client.get("/v1/similar/a%2Fb"), 404)
    body = {"requests": [{"surface": "similar", "item_id": "zz"}, {"user_id": "user-1"}]}
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
    ("where", "says"),
    [
        ("price < ", "filter.where: character 9: expected a number"),
        ("(" * 1_000, "nested deeper than 32"),
        ("not " * 1_000, "nested deeper than 32"),
        ("a" * 10_240, "at most 4096 characters"),
        ("", "at least 1 character"),
        ("a = '\u4e16", "is not closed"),
    ],
)
def test_filter_that_cannot_be_read_is_422(client, where, says):
    response = client.post("/v1/recommend", json={"filter": {"where": where}})
    assert says in refused(response, 422)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": "0"}, "k: Input should be greater"),
        ({"k": "1001"}, "k: Input should be less than or equal to 1000"),
        ({"k": "-1"}, "k: "),
        ({"k": "ten"}, "k: "),
        ({"k": "9" * 5000}, "k: "),
        ({"k": "\u0663"}, "k: "),
        ({"n": "1"}, "n: not a field of this request"),
    ],
)
def test_wrong_parameters_of_similar_are_422(client, parameters, message):
    assert message in refused(client.get("/v1/similar/item-1", params=parameters), 422)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"k": 0}, "k: Input should be greater than or equal to 1"),
        ({"k": -1}, "k: Input should be greater than or equal to 1"),
        ({"k": 10**9}, "k: Input should be less than or equal to 1000"),
        ({"k": 2.5}, "k: Input should be a valid integer"),
        ({"k": "2"}, "k: Input should be a valid integer"),
        ({"k": True}, "k: Input should be a valid integer"),
        ({"k": None}, "k: Input should be a valid integer"),
        ({"user_id": ""}, "user_id: String should have at least 1 character"),
        ({"user_id": 7}, "user_id: Input should be a valid string"),
        ({"user_id": "x" * 513}, "user_id: String should have at most 512 characters"),
        ({"session": ["x"] * 10_001}, "session: List should have at most 10000 items"),
        ({"session": [None]}, "session.0: Input should be a valid string"),
        ({"surface": "checkout"}, "unknown surface"),
        ({"surface": "similar"}, "kind 'related' and needs item_id"),
        ({"surface": "similar", "item_id": "a", "user_id": "b"}, "takes item_id, not user_id"),
        ({"item_id": "item-1"}, "takes no item_id; put it into session"),
        ({"filter": {"categories": []}}, "filter.categories: List should have at least 1 item"),
        ({"filter": {"brand": "x"}}, "filter.brand: not a field of this request"),
        ({"query": "shoes"}, "takes no query; name a surface of kind"),
        ({"diversity": 1.5}, "diversity: Input should be less than or equal to 1"),
        ({"cursors": "a"}, "cursors: not a field"),
        ({"context": {"country": "at"}}, "context.country: not a field"),
        ({"context": {"unix_time": -1}}, "context.unix_time: "),
        ({"k": 101, "explain": True}, "explain takes k of at most 100, got 101"),
        ({"exclude": "item-1"}, "exclude: Input should be a valid list"),
        ({"\u4e16" * 200: 1, "k": 0}, "(and 1 more)"),
        ([], "body: must be a JSON object"),
        (None, "body: must be a JSON object"),
        ("text", "body: must be a JSON object"),
    ],
)
def test_wrong_fields_are_422_and_named(client, body, message):
    response = client.post("/v1/recommend", content=json.dumps(body), headers=JSON)
    assert message in refused(response, 422)


def test_batch_errors_name_the_request(client):
    body = {"requests": [{"k": 5}, {"k": 0}]}
    message = refused(client.post("/v1/recommend:batch", json=body), 422)
    assert message.startswith("requests.1.k: ")
    refused(client.post("/v1/recommend:batch", json={"requests": []}), 422)
    refused(client.post("/v1/recommend:batch", json={"requests": [{}] * 1001}), 422)
    many = {"requests": [{"k": 1000}] * 20 + [{"k": 1}]}
    message = refused(client.post("/v1/recommend:batch", json=many), 422)
    assert "adds up to 20001; a batch may have 20000" in message


BAD_BODIES = {
    "NaN": b'{"k": NaN}',
    "infinity": b'{"k": Infinity}',
    "minus infinity": b'{"k": -Infinity}',
    "1e400": b'{"k": 1e400}',
    "huge integer": b'{"k": ' + b"9" * 5_000 + b"}",
    "lone surrogate": b'{"user_id": "\\ud800"}',
    "lone surrogate key": b'{"\\udfff": 1}',
    "raw surrogate": b'{"user_id": "\xed\xa0\x80"}',
    "overlong": b'{"user_id": "\xc0\x80"}',
    "nested lists": b"[" * 200_000,
    "nested objects": b'{"a":' * 100_000,
    "closed nesting": b"[" * 5_000 + b"]" * 5_000,
    "byte order mark": b'\xef\xbb\xbf{"k": 1}',
    "utf-16": '{"k": 1}'.encode("utf-16"),
    "nothing": b"",
    "spaces": b"   ",
    "half": b'{"user_id": "user',
    "two": b"{} {}",
    "NUL": b"\0",
    "form": b"user_id=user-1",
    "gzip": bytes.fromhex("1f8b0800000000000003ab56ca56b2325482000000ffff"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/recommend:batch"])
def test_bodies_that_are_not_sound_json_are_refused(client, path, name):
    response = client.post(path, content=BAD_BODIES[name], headers=JSON)
    assert response.status_code in (400, 422)
    refused(response, response.status_code)
    assert "NaN" not in response.text


def test_10000_ids_are_answered_at_a_bounded_cost_and_unknown_ones_change_no_list(client):
    """Models read the latest 200 events; the rest is looked up."""
    unknown = [f"unknown-{n}" for n in range(9_800)]
    latest = [f"item-{1 + n % 20}" for n in range(200)]
    bodies = {
        "short": {"session": latest, "exclude": ["item-30"]},
        "unknown": {"session": [*unknown, *latest], "exclude": ["item-30", *unknown]},
        "duplicates": {"session": latest * 50, "exclude": ["item-30"] * 10_000},
    }
    seconds, items = {}, {}
    for name, body in bodies.items():
        taken = []
        for _ in range(5):
            begin = time.perf_counter()
            reply = client.post("/v1/recommend", json=body)
            taken.append(time.perf_counter() - begin)
            assert reply.status_code == 200
        seconds[name], items[name] = min(taken), reply.json()["items"]
    assert items["unknown"] == items["short"]
    assert not {item["item_id"] for item in items["duplicates"]} & {*latest, "item-30"}
    # A hundred times as many look-ups.
    assert max(seconds.values()) < 50 * seconds["short"]


def test_odd_but_valid_text_is_served(client):
    for user_id in ("\0", "\u202e\U0001f600", "<script>", "a" * 512, "\ufeff"):
        reply = client.post("/v1/recommend", json={"user_id": user_id, "session": [user_id]})
        assert reply.status_code == 200
        assert reply.json()["fallback"] == "popularity"


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "", "multipart/form-data"])
def test_other_content_types_are_415(client, kind):
    response = client.post("/v1/recommend", content=b"{}", headers={"content-type": kind})
    assert "application/json" in refused(response, 415)


def test_charset_is_fine_and_compression_is_415(client):
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/recommend", content=b"{}", headers=kind).status_code == 200
    compressed = {**JSON, "content-encoding": "gzip"}
    refused(client.post("/v1/recommend", content=b"{}", headers=compressed), 415)


def test_unknown_routes_and_methods_are_4xx(client):
    assert "GET / lists the routes" in refused(client.get("/v2/recommend"), 404)
    refused(client.get("/v1/recommend"), 405)
    wrong = client.get("/v1/recommend")
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


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


@pytest.mark.parametrize("path", ["/healthz", "/", "/v1/search?q=title", "/v1/similar/item-1"])
def test_head_is_answered_where_get_is(client, path):
    answered = client.head(path)
    assert (answered.status_code, answered.content) == (200, b"")
    assert answered.headers["content-type"] == client.get(path).headers["content-type"]
    assert client.head("/v1/recommend").status_code == 405
    assert client.head("/v1/similar/zz").status_code == 404


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
        "surface": st.sampled_from(["home", "similar", "x"]),
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


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=fields | anything | st.dictionaries(st.sampled_from(["k", "session", "user_id"]), anything)
)
def test_any_json_is_answered_or_refused_never_5xx(client, body):
    content = json.dumps(body).encode()
    response = client.post("/v1/recommend", content=content, headers=JSON)
    assert response.status_code in (200, 400, 404, 422), response.text
    assert json.loads(response.content)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=300))
def test_any_bytes_are_refused_or_answered_never_5xx(client, body):
    assert client.post("/v1/recommend", content=body, headers=JSON).status_code < 500


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(item_id=st.text(min_size=1, max_size=30).filter(lambda text: text not in (".", "..")))
def test_any_item_id_in_the_path_is_never_5xx(client, item_id):
    from urllib.parse import quote

    assert client.get(f"/v1/similar/{quote(item_id, safe='')}").status_code < 500


def test_server_of_profile_full_answers_as_python_does(tmp_path):
    write_synthetic_bundle(tmp_path, "v1", SyntheticSize(history_models=True))
    publish(tmp_path, "v1")
    # Reasons name what the user did, as in Python.
    full = Settings(
        bundles=tmp_path,
        profile="full",
        beam_timeout_ms=60_000,
        log_requests=False,
        expose_users=True,
    )
    requested = {"user_id": "user-1", "k": 3, "explain": True}
    with TestClient(create_app(full)) as client:
        assert client.get("/readyz").json()["profile"] == "full"
        reply = client.post("/v1/recommend", json=requested).json()
    assert reply["served_by"]["profile"] == "full"
    local = Recommender.load(tmp_path / "current", ServingOptions(profile="full")).answer(
        Request.model_validate(requested)
    )
    assert reply["items"] == json.loads(to_json(local.items))
    assert "generative" in reply["items"][0]["contributions"]
    with TestClient(create_app(Settings(bundles=tmp_path, log_requests=False))) as client:
        assert client.get("/readyz").json()["profile"] == "fast"
        fast = client.post("/v1/recommend", json=requested).json()
    assert fast["items"] != reply["items"]
