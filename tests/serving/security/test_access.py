import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.log import LOGGER
from serving.security.access import Access, Caller, Refusal, TokenBucket, required_scope
from serving.security.keys import digest_of
from serving.settings import Settings

PEER = "203.0.113.77"
READ, USERS, OPS = "rk_read", "rk_users", "rk_ops"
FILE = f"""
[[keys]]
name = "shop"
sha256 = "{digest_of(READ)}"
scopes = ["read"]
rate = 10.0
burst = 3
[[keys]]
name = "support"
sha256 = "{digest_of(USERS)}"
scopes = ["read", "users"]
tenant = "house"
[[keys]]
name = "ops"
sha256 = "{digest_of(OPS)}"
scopes = ["admin", "metrics"]
"""


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


@pytest.fixture
def access(keys):
    return Access(Settings(keys=keys, host="0.0.0.0"))


def bearer(secret):
    return [(b"authorization", f"Bearer {secret}".encode())]


def outcome(access, path, headers=(), now=0.0):
    found = access.authorize(headers, path, "GET", PEER, now)
    return found.code if isinstance(found, Refusal) else found.name


@pytest.mark.parametrize(
    ("path", "secret", "expected"),
    [
        ("/v1/recommend", READ, "shop"),
        ("/v1/recommend", USERS, "support"),
        ("/v1/recommend", OPS, "scope_missing"),
        ("/v1/users", READ, "scope_missing"),
        ("/v1/users/", READ, "scope_missing"),
        ("/v1/users/7/history", READ, "scope_missing"),
        ("/v1/users/7/history", USERS, "support"),
        ("/v1/admin/reload", USERS, "scope_missing"),
        ("/v1/admin/reload", OPS, "ops"),
        ("/metrics", OPS, "ops"),
        ("/metrics", READ, "scope_missing"),
        ("/v1/events", READ, "scope_missing"),
        ("/no/such/route", READ, "shop"),
        ("/no/such/route", "rk_wrong", "key_unknown"),
        ("/v1/recommend", "rk_wrong", "key_unknown"),
    ],
)
def test_a_key_opens_what_its_scopes_say(access, path, secret, expected):
    assert outcome(access, path, bearer(secret)) == expected


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer  ")],
        [(b"authorization", b"Basic " + READ.encode())],
        [(b"authorization", READ.encode())],
        [(b"x-api-key", READ.encode())],
        [(b"cookie", b"key=" + READ.encode())],
        [*bearer(READ), *bearer(READ)],
    ],
)
def test_without_one_key_there_is_401_that_says_how(access, headers):
    found = access.authorize(headers, "/v1/recommend", "POST", PEER)
    assert (found.status, found.code) == (401, "key_missing")
    assert found.headers == ((b"www-authenticate", b"Bearer"),)
    assert "Bearer <key>" in found.message


def test_histories_are_shown_by_scope_or_switch_and_never_by_headers(keys):
    spoofed = [(b"host", b"127.0.0.1"), (b"x-forwarded-for", b"127.0.0.1")]
    access = Access(Settings(keys=keys))
    for secret, shown in ((READ, False), (USERS, True)):
        found = access.authorize([*bearer(secret), *spoofed], "/v1/recommend", "POST", "127.0.0.1")
        assert found.shows_users is shown
    assert access.authorize(bearer(USERS), "/v1/users", "GET", PEER) == Caller(
        "support", shows_users=True
    )
    switched = Access(Settings(keys=keys, expose_users=True))
    assert outcome(switched, "/v1/users", bearer(READ)) == "shop"
    assert outcome(switched, "/v1/users", bearer(OPS)) == "scope_missing"


def test_a_key_has_a_limit_of_its_own_and_waits_as_told(access):
    assert [outcome(access, "/v1/recommend", bearer(READ)) for _ in range(4)] == [
        *["shop"] * 3,
        "rate_limited",
    ]
    refused = access.authorize(bearer(READ), "/v1/recommend", "POST", PEER, 0.0)
    assert (refused.status, refused.headers) == (429, ((b"retry-after", b"1"),))
    assert outcome(access, "/v1/recommend", bearer(USERS)) == "support"
    assert outcome(access, "/v1/recommend", bearer(READ), now=0.1) == "shop"
    assert outcome(access, "/v1/recommend", bearer(READ), now=0.11) == "rate_limited"


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.5, 50), st.integers(1, 20))
def test_no_pattern_of_requests_passes_more_than_rate_and_burst(pauses, rate, capacity):
    bucket, now, passed = TokenBucket(rate, capacity, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        passed += bucket.wait(now) == 0
    assert passed <= capacity + rate * now + 1e-6


def test_a_changed_key_file_counts_at_once_and_a_faulty_one_never(keys, access, caplog):
    keys.write_text(FILE.replace(digest_of(READ), digest_of("rk_next")))
    access.poll()
    assert outcome(access, "/v1/recommend", bearer(READ)) == "key_unknown"
    assert outcome(access, "/v1/recommend", bearer("rk_next")) == "shop"
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        keys.write_text("[[keys]]")
        access.poll()
        access.poll()
        keys.unlink()
        access.poll()
    assert [line.getMessage() for line in caplog.records] == ["keys_refused"] * 2
    assert outcome(access, "/v1/recommend", bearer("rk_next")) == "shop"


def test_without_keys_only_this_machine_is_listened_to_unless_said():
    for host in ("0.0.0.0", "::", "10.0.0.5", "shop.example", ""):
        with pytest.raises(ValueError, match=r"RECSYS_KEYS.*--allow-anonymous"):
            Access(Settings(host=host))
        assert outcome(Access(Settings(host=host, allow_anonymous=True)), "/v1/recommend")
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        assert outcome(Access(Settings(host=host)), "/v1/recommend") == "anonymous"


def test_anyone_may_request_lists_but_not_users_or_administration():
    access = Access(Settings())
    here = [(b"host", b"127.0.0.1:8000")]
    assert outcome(access, "/metrics", here) == "anonymous"
    for path in ("/v1/users", "/v1/users/7/history"):
        assert outcome(access, path, here) == "users_not_shown"
    assert outcome(access, "/v1/admin/reload", here) == "no_keys"
    caller = access.authorize(here, "/v1/recommend", "POST", "127.0.0.1")
    assert caller.shows_users is False


@pytest.mark.parametrize(
    ("host", "shown"),
    [(b"127.0.0.1:8000", True), (b"localhost", True), (b"[::1]:1", True), (b"evil.example", False)],
)
def test_the_switch_shows_users_but_to_no_site_that_resolves_to_this_machine(host, shown):
    access = Access(Settings(expose_users=True))
    headers = [(b"host", host)]
    assert outcome(access, "/v1/users", headers) == ("anonymous" if shown else "users_not_shown")
    caller = access.authorize(headers, "/v1/recommend", "POST", None)
    assert caller.shows_users is shown
    beyond = Access(Settings(expose_users=True, host="0.0.0.0", allow_anonymous=True))
    assert outcome(beyond, "/v1/users", headers) == "anonymous"


def audited(caplog):
    return [line.fields for line in caplog.records if line.getMessage() == "audit"]


def test_refusals_and_private_data_are_audited_without_ids_keys_or_addresses(access, caplog):
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        outcome(access, "/v1/users/ann@example.org/history", bearer(READ))
        outcome(access, "/v1/users/ann@example.org/history", bearer(USERS))
        outcome(access, "/v1/recommend", bearer(READ))
        outcome(access, "/v1/recommend", bearer("rk_wrong"))
    route = "GET /v1/users/{user_id}/history"
    network = "203.0.113.0/24"
    refused = {"outcome": "refused", "left_out": 0, "network": network}
    shop = refused | {"status": 403, "code": "scope_missing", "key": "shop", "tenant": "shop"}
    support = {"outcome": "passed", "scope": "users", "key": "support", "tenant": "house"}
    stranger = refused | {"status": 401, "code": "key_unknown", "key": None}
    assert audited(caplog) == [
        shop | {"route": route},
        support | {"route": route, "network": network},
        stranger | {"route": "GET /v1/recommend"},
    ]


def test_a_flood_of_refusals_is_a_few_lines(access, caplog):
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        for number in range(5_000):
            outcome(access, "/v1/recommend", now=number / 5_000)
        outcome(access, "/v1/recommend", now=5.0)
    lines = audited(caplog)
    assert len(lines) <= 21
    assert sum(line["left_out"] for line in lines) == 5_001 - len(lines)


@given(st.text(max_size=40))
def test_no_way_of_writing_a_path_gives_users_for_less_than_their_scope(text):
    """The router matches decoded paths as they are, so a path is private by its beginning."""
    for path in (f"/v1/users/{text}", f"/v1/users/{text}/history"):
        assert required_scope(path) == "users"
    assert required_scope(f"/v1/admin/{text}") == "admin"


def test_open_routes_need_no_key(access):
    for path in ("/", "/healthz", "/readyz", "/openapi.json", "/pages/page.js"):
        assert outcome(access, path) == "anonymous"
        # Nobody's body is read for them.
        assert access.authorize([], path, "POST", PEER).status == 401


def test_a_batch_counts_as_many_lists(access):
    caller = access.authorize(bearer(READ), "/v1/recommend:batch", "POST", PEER, 0.0)
    access.charge(caller, 100)
    assert outcome(access, "/v1/recommend", bearer(READ), now=9.0) == "rate_limited"
    assert outcome(access, "/v1/recommend", bearer(READ), now=10.0) == "shop"


def test_methods_of_a_client_do_not_reach_the_log_as_they_are(access, caplog):
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        access.authorize([], "/v1/recommend\n", "GET", "not an address")
    assert audited(caplog)[0]["route"] == "GET other"
    assert audited(caplog)[0]["network"] is None
