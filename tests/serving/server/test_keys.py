"""A server with keys, attacked over HTTP as a stranger and as a client would."""

import os
import socket
import subprocess
import sys
from itertools import product

import httpx
import pytest

from serving.security.keys import digest_of
from tests.serving.server.running import SERVE, running, wait_for

READ, SUPPORT, SLOW = "rk_read", "rk_support", "rk_slow"
FILE = f"""
[[keys]]
name = "shop"
sha256 = "{digest_of(READ)}"
scopes = ["read"]
[[keys]]
name = "support"
sha256 = "{digest_of(SUPPORT)}"
scopes = ["read", "users"]
[[keys]]
name = "slow"
sha256 = "{digest_of(SLOW)}"
scopes = ["read"]
rate = 0.5
burst = 2
"""
EXPLAINED = {"user_id": "user-2", "k": 30, "explain": True}
PRIVATE = (
    "/v1/users?prefix=u",
    "/v1/users/",
    "/v1/users/user-1/history",
    "/v1/users/%75ser-1/history",
)


def write_keys(folder, text=FILE):
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(released, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    settings = {"keys": write_keys(folder), "host": "0.0.0.0", "workers": 1}
    with running(released, folder / "log", **settings) as server:
        yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url) as client:
        yield client


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def code_of(reply):
    return reply.status_code, reply.json().get("error", {}).get("code")


def test_strangers_get_nothing_but_health_and_the_page(client):
    for path in ("/healthz", "/readyz", "/", "/pages/page.js", "/openapi.json"):
        assert client.get(path).status_code == 200
    spoofed = {"host": "127.0.0.1", "x-forwarded-for": "127.0.0.1", "x-recsys-shown": "true"}
    for headers in ({}, spoofed, bearer("rk_forged"), {"x-api-key": READ}):
        for path in (*PRIVATE, "/v1/catalogue", "/v1/items?id=item-1", "/nothing", "/metrics"):
            assert client.get(path, headers=headers).status_code == 401, path
        reply = client.post("/v1/recommend", json=EXPLAINED, headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
    assert client.post("/pages/page.js", content=b"x" * 100).status_code == 401


@pytest.mark.parametrize("key", [None, READ], ids=["stranger", "key"])
def test_no_path_leads_to_a_file_of_the_machine(server, key):
    """Paths that a client would not send, from the folder of the page's own files."""
    sent = f"authorization: Bearer {key}\r\n" if key else ""
    for start, out in product(
        ("/pages/", "/", "/v1/users/"), ("../", "..%2f", "%2e%2e/", "..%5c", "//", "%00../")
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            path = f"{start}{out}{'../' * 20}etc/passwd"
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{sent}"
            connection.sendall(f"{head}\r\n".encode())
            reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert int(reply.split()[1]) in ((403, 404) if key else (401, 404)), reply
        assert b"root:" not in reply


def test_a_limit_counts_the_lists_of_batches(client):
    headers = bearer(SLOW)
    batch = {"requests": [{"k": 1}] * 5}
    assert client.post("/v1/recommend:batch", json=batch, headers=headers).status_code == 200
    refused = client.post("/v1/recommend", json={}, headers=headers)
    assert code_of(refused) == (429, "rate_limited")
    # Two at once, one each two seconds: five lists and the next are four too many.
    assert 7 <= int(refused.headers["retry-after"]) <= 8


def test_audit_lines_name_keys_and_routes_but_no_users_and_no_secrets(server, client):
    client.get("/v1/users/user-7/history", headers=bearer(SUPPORT))

    def refused():
        # At most ten lines a second are written, and other tests have some of them.
        client.get("/v1/users/user-7/history", headers=bearer(READ))
        return [one for one in server.events("audit") if one["key"] == "shop"]

    lines = wait_for(refused)
    assert lines[-1]["route"] == "GET /v1/users/{user_id}/history"
    assert lines[-1]["code"] == "scope_missing"
    assert any(one["outcome"] == "passed" for one in server.events("audit"))
    text = server.log.read_text()
    assert not [secret for secret in (READ, SUPPORT, SLOW, "rk_forged", "user-7") if secret in text]


def test_a_wrong_method_is_named_and_head_is_answered(client):
    wrong = client.put("/v1/recommend", content=b"{}", headers=bearer(READ))
    assert code_of(wrong) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    for path in ("/healthz", "/", "/v1/similar/item-1"):
        head = client.head(path, headers=bearer(READ))
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"HOST": "0.0.0.0"}, "--allow-anonymous"),
        ({"KEYS": "/nowhere/keys.toml"}, "cannot be read"),
    ],
)
def test_a_server_that_nobody_guards_does_not_start(released, settings, message):
    environment = {f"RECSYS_{name}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", SERVE],
        env={**os.environ, "RECSYS_BUNDLES": str(released), "RECSYS_PORT": "0", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert message in done.stderr
