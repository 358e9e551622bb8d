"""The front between concurrent callers, writers and workers, whose replies a test decides."""

import asyncio

import pytest

from serving.online.sqlite_store import SqliteStore
from serving.online.writer import EventWriter
from serving.security.keys import digest_of
from tests.serving.online.test_contract import event, lists_of, record
from tests.serving.server.bench import FrontBench, list_of, run

ASKED = {"user_id": "user-2", "k": 3, "explain": True}
EVENT = {"event_id": "e", "user_id": "user-2", "item_id": "item-1", "event_type": "view"}


@pytest.fixture
def keys(tmp_path):
    """Two keys, of which only ``support`` may see users."""
    path = tmp_path / "keys.toml"
    path.write_text(
        "".join(
            f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\nscopes = {scopes}\n'
            for name, scopes in (("shop", ["read"]), ("support", ["read", "users"]))
        )
    )
    path.chmod(0o600)
    return path


@pytest.fixture
def store(tmp_path):
    return SqliteStore(tmp_path / "online")


@pytest.fixture
def writer(store):
    writer = EventWriter(store)
    yield writer
    writer.close()


def test_equal_requests_share_a_list_only_with_callers_who_may_see_the_same(keys):
    async def test():
        bench = FrontBench(keys=keys)
        asking = [await bench.begun(document=ASKED, key=key) for key in ("shop", "support") * 2]
        frames = bench.pipes[0].frames
        assert [frame.head["shown"] for frame in frames] == [False, True]
        bench.reply(0, list_of("hidden"))
        bench.reply(0, list_of("shown"))
        replies = [(await one).document for one in asking]
        assert [reply["items"] for reply in replies] == [["hidden"], ["shown"]] * 2
        assert len({reply["request_id"] for reply in replies}) == 4

    run(test)


def test_500_clients_of_one_cold_key_cost_one_list():
    async def test():
        bench = FrontBench(workers=2)
        asking = [await bench.begun(document=ASKED) for _ in range(500)]
        # The first one leaves; the others still get what it began.
        asking[0].cancel()
        await asyncio.sleep(0)
        assert bench.held() in ([["list"], []], [[], ["list"]])
        bench.reply(int(not bench.held()[0]), list_of("only"))
        replies = await asyncio.gather(*asking[1:])
        assert {reply.status for reply in replies} == {200}
        assert {tuple(reply.document["items"]) for reply in replies} == {("only",)}
        assert len({reply.document["request_id"] for reply in replies}) == 499
        assert bench.dispatcher.num_deduplicated == 499

    run(test)


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "/v1/events", {"events": [EVENT]}),
        ("POST", "/v1/items", {"items": [{"item_id": "item-1", "hidden": True}]}),
        ("DELETE", "/v1/users/user-2", None),
    ],
    ids=["events", "items", "forget"],
)
def test_a_list_begun_before_an_acknowledged_write_is_not_given_after_it(
    writer, method, path, document
):
    async def test():
        bench = FrontBench(writer=writer, allow_admin=True)
        before = await bench.begun(document=ASKED)
        assert (await bench.ask(method, path, document)).status == 200
        after = await bench.begun(document=ASKED)
        bench.reply(0, list_of("old"))
        await before
        assert not after.done()
        bench.reply(0, list_of("new"))
        assert (await before).document["items"] == ["old"]
        assert (await after).document["items"] == ["new"]

    run(test)


class SlowLog:
    """A log of lists that has not written yet; ``written`` says whether it could."""

    def __init__(self):
        self.written = asyncio.get_running_loop().create_future()

    async def flushed(self):
        return await self.written


def test_forgetting_a_user_waits_until_lists_on_their_way_are_written(store, writer):
    async def test():
        bench = FrontBench(writer=writer, allow_admin=True)
        bench.fleet.request_log = log = SlowLog()
        forgetting = asyncio.create_task(bench.ask("DELETE", "/v1/users/ann"))
        await asyncio.sleep(0.05)
        assert not forgetting.done()
        store.add_requests([record(1)])
        log.written.set_result(True)
        assert (await forgetting).document["removed"] == {"events": 0, "lists": 1}
        assert lists_of(store) == []

    run(test)


def test_where_lists_cannot_be_written_nobody_is_forgotten(store, writer):
    async def test():
        bench = FrontBench(writer=writer, allow_admin=True)
        bench.fleet.request_log = log = SlowLog()
        store.add_events([event(1)])
        log.written.set_result(False)
        refused = await bench.ask("DELETE", "/v1/users/ann")
        assert (refused.status, refused.code) == (503, "store_busy")
        assert refused.headers["retry-after"]
        assert len(store.visitor("ann", 9).events) == 1

    run(test)


def test_a_body_of_parts_is_refused_at_the_limit_and_not_read_beyond():
    async def test():
        bench = FrontBench(max_body_bytes=100)
        taken = []

        def parts():
            for _ in range(50):
                taken.append(1)
                yield b" " * 30

        refused = await bench.ask(parts=parts())
        assert (refused.status, refused.code) == (413, "too_large")
        assert len(taken) == 4
        assert bench.held() == [[]]

    run(test)


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "/v1/items", {"items": [{"item_id": "item-1", "hidden": True}]}),
        ("DELETE", "/v1/users/user-1", None),
    ],
)
def test_without_leave_nobody_administers(writer, method, path, document):
    async def test():
        refused = await FrontBench(writer=writer).ask(method, path, document)
        assert (refused.status, refused.code) == (403, "no_keys")

    run(test)
