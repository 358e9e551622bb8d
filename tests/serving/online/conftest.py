"""Servers of Redis for tests."""

import pytest

from tests.serving.online.redis_server import PROGRAM, RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory):
    """One that is up as long as the tests; stores are apart by their prefixes."""
    if PROGRAM is None:
        pytest.skip("no redis-server on PATH: apt-get install redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no")
    yield server
    server.kill()


@pytest.fixture
def start_redis(tmp_path):
    """Starts one that a test may damage."""
    if PROGRAM is None:
        pytest.skip("no redis-server on PATH: apt-get install redis-server")
    servers = []

    def start(*options):
        servers.append(RedisServer(tmp_path, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.thaw()
        server.kill()
