"""The routes: documents, windows, suggestions, files, and what is refused."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipelines.dashboard.context import Context
from pipelines.dashboard.web import access as rules
from pipelines.dashboard.web.access import AccessRules
from pipelines.dashboard.web.app import Site, create_app
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.file import version
from tests.pipelines.dashboard.web.pages import HOSTILE, PAGES

KEY = "a-long-key"


class OneRun:
    """A store of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def problems(self) -> list[str]:
        return ["a store is gone"]

    def run(self, key: str) -> Run:
        return Run(
            key=key, name="shop", kind="workspace", status="complete", time=None, path=self.path
        )


def client_of(path: Path, *, base_url: str = "http://127.0.0.1:8100", **access) -> TestClient:
    context = Context(stores=OneRun(path))
    site = Site(context=context, pages=PAGES, access=AccessRules(**access))
    return TestClient(create_app(site), base_url=base_url)


@pytest.fixture
def client(tmp_path):
    return client_of(tmp_path)


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "WRONG_KEY_SECONDS", 0.0)
    return client_of(tmp_path, key=KEY)


def test_the_shell_lists_the_pages_and_names_assets_that_are_there(client):
    reply = client.get("/")
    settings = json.loads(reply.text.split('type="application/json">')[1].split("</script>")[0])
    assert [page["name"] for page in settings["pages"]] == ["every", "other", "hidden"]
    assert "'unsafe-eval'" not in reply.headers["content-security-policy"]
    assets = [part.split('"')[0] for part in reply.text.split(f'"/assets/{version()}/')[1:]]
    assert assets
    for name in assets:
        found = client.get(f"/assets/{version()}/{name}")
        assert found.status_code == 200
        assert "immutable" in found.headers["cache-control"]
    assert client.get("/assets/0/main.js").status_code == 404


def test_a_page_is_its_document_and_numbers_that_are_none_are_null(client):
    page = client.get("/api/page/every?k=7&runs=1&runs=2").json()
    assert page["lead"].startswith("Model none, k 7")
    assert next(one for one in page["controls"] if one["name"] == "runs")["value"] == ["1", "2"]
    table = next(block for block in page["blocks"] if block.get("key") == "tables")["blocks"][0]
    assert [row[1] for row in table["rows"][2:5]] == [0.02, None, None]
    assert page["notices"] == ["a store is gone", "A store is gone.", HOSTILE[0]]


REFUSED = {
    "/api/page/nowhere": (404, "there are: every, hidden, other"),
    "/api/page/other?item=404": (404, "no item '404'"),
    "/api/page/other?item=bad": (400, "none of: 1, 2"),
    "/api/page/every?runs=1&runs=2&runs=3&runs=4": (400, "at most 3"),
    "/api/rows/every/short": (404, "there are: long"),
    "/api/rows/every/long?w.length=100000": (400, "1 to 1000 are allowed"),
    "/api/rows/every/long?w.start=x": (400, "a whole number is needed"),
    "/api/suggest/every/users": (404, "there are: items"),
}


def test_an_error_has_words_for_the_reader(client):
    for address, (status, words) in REFUSED.items():
        reply = client.get(address)
        assert (reply.status_code, words in reply.json()["error"]) == (status, True), address


def test_an_error_that_nobody_expected_has_a_reference_and_no_secret(client, caplog):
    reply = client.get("/api/page/other?item=broken")
    assert reply.status_code == 500
    reference = reply.json()["error"].removesuffix(".").split()[-1]
    assert "secret" not in reply.text
    assert reference in caplog.text
    assert "a secret of the machine" in caplog.text


def test_a_window(client):
    window = client.get("/api/rows/every/long?w.start=3&w.length=2&w.descending=1").json()
    assert window["total"] == window["found"] == 2_000
    assert [row[0]["sort"] for row in window["rows"]] == [1996, 1995]


def test_the_key_is_taken_from_a_page_of_ours_alone(keyed, client):
    assert keyed.post("/api/enter", json={}).status_code == 401
    for header in (
        {"origin": "http://elsewhere.example"},
        {"sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
    ):
        given = {"x-api-key": KEY, **header}
        assert keyed.post("/api/enter", json={}, headers=given).status_code == 403
    reply = client.post("/api/enter", json={}, headers={"x-api-key": ""})
    assert (reply.status_code, "--key-file" in reply.json()["error"]) == (403, True)


def test_a_host_that_is_not_ours_is_refused(client):
    hosts = {"127.0.0.1:8100": 200, "[::1]:8100": 200, "rebound.example": 421, "10.0.0.1": 421}
    for host, status in hosts.items():
        assert client.get("/api/page/other", headers={"host": host}).status_code == status, host


def test_other_machines_reach_it_with_a_key_or_where_it_is_public(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "WRONG_KEY_SECONDS", 0.0)
    with pytest.raises(ValueError, match="--key-file"):
        AccessRules(host="0.0.0.0")
    there = "http://192.0.2.7:8100"
    assert (
        client_of(tmp_path, base_url=there, host="0.0.0.0", public=True).get("/api/page/other")
    ).status_code == 200
    closed = client_of(tmp_path, base_url=there, host="0.0.0.0", key=KEY)
    assert closed.get("/").status_code == 200
    assert closed.get("/api/page/other").status_code == 401
    assert closed.post("/api/enter", json={}, headers={"x-api-key": "no"}).status_code == 401
    assert closed.post("/api/enter", json={}, headers={"x-api-key": KEY}).status_code == 200
    assert closed.get("/api/page/other").status_code == 200
    assert closed.get("/api/page/other", headers={"host": "rebound.example"}).status_code == 421


def test_a_run_shows_its_report_and_nothing_outside(tmp_path):
    folder = tmp_path / "run"
    (folder / "report").mkdir(parents=True)
    (folder / "report" / "report.html").write_text("<script>1</script>")
    (folder / "config.toml").write_text("seed = 0\n")
    (folder / "model.safetensors").write_text("weights")
    (folder / ".hidden.json").write_text("{}")
    (tmp_path / "outside.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    (folder / "weights.json").symlink_to(folder / "model.safetensors")
    client = client_of(folder)
    report = client.get("/files/0123456789ab/report/report.html")
    policy = report.headers["content-security-policy"]
    assert report.text == "<script>1</script>"
    assert "sandbox allow-scripts allow-downloads;" in policy
    assert "default-src 'none'" in policy
    assert client.get("/files/0123456789ab/config.toml").text == "seed = 0\n"
    for path in (
        "model.safetensors",
        ".hidden.json",
        "link.json",
        "weights.json",
        "..%2foutside.json",
        "report/../../outside.json",
        "/etc/passwd.txt",
        "report",
        "gone.json",
        "%00.json",
    ):
        assert client.get(f"/files/0123456789ab/{path}").status_code == 404, path
