import pytest
from starlette.testclient import TestClient

from serving.bundle.load import load_bundle
from serving.settings import Settings
from serving.web.files import STATIC
from tests.serving.application import create_app

HERE = "http://127.0.0.1:8000"
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def client_of(bundles_dir, base_url=HERE, **settings):
    app = create_app(Settings(bundles=bundles_dir, **settings))
    return TestClient(app, base_url=base_url, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(released):
    with client_of(released, expose_users=True) as client:
        yield client


def refused(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


# ---- the page's files


def test_a_browser_gets_the_page_and_anything_else_the_links(client):
    page = client.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    links = client.get("/")
    assert links.json()["recommend"] == "POST /v1/recommend"
    assert page.headers["vary"] == links.headers["vary"] == "accept"


def test_files_are_typed_tagged_and_may_run_nothing_but_the_servers_own_scripts(client):
    for path in STATIC.iterdir():
        response = client.get(f"/pages/{path.name}")
        assert response.content == path.read_bytes()
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        tagged = {"if-none-match": response.headers["etag"]}
        again = client.get(f"/pages/{path.name}", headers=tagged)
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2fpages.py", "%2e%2e/pages.py", ".", "page.css%00"]
)
def test_nothing_but_the_pages_files_is_sent(client, name):
    response = client.get(f"/pages/{name}")
    assert response.status_code == 404
    assert "error" in response.json()


# ---- items


def test_search_finds_titles_with_their_categories(client, released):
    own = load_bundle(released / "bundle-v1").semantic_ids
    items = client.get("/v1/search", params={"q": "TITLE 10"}).json()["items"]
    assert items[0] == {
        "item_id": "item-10",
        "title": "Title 10 \u00fc\u4e16\U0001f600",
        "categories": ["even", "tens"],
        "semantic_id": own.text(10),
    }
    assert len(client.get("/v1/search", params={"q": "", "k": 3}).json()["items"]) == 3


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/search?q=" + "x" * 201, "q"),
        ("/v1/search?k=0", "k"),
        ("/v1/search?k=51", "k"),
        ("/v1/search?k=many", "k"),
        ("/v1/search?query=star", "query"),
        ("/v1/items", "id"),
        ("/v1/items?id=", "id.0"),
        ("/v1/items?" + "id=a&" * 101, "id"),
        ("/v1/users?k=999", "k"),
        ("/v1/users?random=perhaps", "random"),
        ("/v1/users/user-1/history?k=-1", "k"),
    ],
)
def test_bad_parameters_are_named(client, path, field):
    error = refused(client.get(path), 422)
    assert error["fields"][0]["field"] == field


def test_catalogue_counts_items_users_and_categories(client):
    found = client.get("/v1/catalogue").json()
    assert (found["num_items"], found["num_users"], found["shows_users"]) == (40, 12, True)
    assert found["categories"] == [
        {"name": "even", "num_items": 20},
        {"name": "odd", "num_items": 20},
        {"name": "tens", "num_items": 4},
    ]
    assert found["properties"] == {"category": "list", "item_id": "text"}


# ---- users


def test_users_are_listed_by_prefix_short_ids_first(client):
    users = client.get("/v1/users", params={"prefix": "USER-1"}).json()["users"]
    assert [user["user_id"] for user in users] == ["user-1", "user-10", "user-11", "user-12"]
    assert users[0]["num_events"] == 8
    assert client.get("/v1/users?prefix=nobody").json()["users"] == []
    drawn = client.get("/v1/users?random=true&k=50").json()["users"]
    assert len({user["user_id"] for user in drawn}) == 12


def test_items_are_described_in_the_order_asked_and_unknown_ones_left_out(client):
    requested = [("id", "item-7"), ("id", "no such"), ("id", "item-2")]
    items = client.get("/v1/items", params=requested).json()["items"]
    assert [item["item_id"] for item in items] == ["item-7", "item-2"]


def test_history_is_newest_first_and_whole(client):
    bundle = client.app.recommender.bundle
    rows = bundle.users.history(bundle.users.row_of("user-3"))
    found = client.get("/v1/users/user-3/history").json()
    assert found["num_events"] == len(rows) == 8
    ids = [item["item_id"] for item in found["items"]]
    assert ids == [bundle.catalogue.item_ids[row] for row in rows[::-1].tolist()]
    times = [item["unix_time"] for item in found["items"]]
    assert times == sorted(times, reverse=True)
    assert len(client.get("/v1/users/user-3/history?k=2").json()["items"]) == 2
    assert refused(client.get("/v1/users/no/body/history"), 404)["code"] == "unknown_user"
