"""A language model reads what rules leave unread of a wish, within a time and never on the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import orjson

from recsys.content.config import EndpointConfig
from recsys.content.endpoint import Endpoint
from recsys.content.name_choice import NameChoice, choose_names, read_choice
from recsys.models.text_search.wishes import DAY, value_key
from serving.configuration.file import WishModel
from serving.log import log
from serving.online.topics import MAX_WORDS, SaidTopic
from serving.schemas import Direction

FAILED, BUSY = "the language model failed", "the language model is busy"
OUTSIDE = "the language model answered outside its schema"
NOTHING = "the language model found none of our names in it either"


class Reading(NamedTuple):
    """What a language model read in a wish that rules had left unread in part."""

    wish: str
    read: Sequence[str]
    """Words of the topics that rules read whole; these are kept."""
    choice: NameChoice
    fault: str | None = None
    """Why no names were chosen."""

    def join(self, rules: list[SaidTopic], now: float) -> list[SaidTopic]:
        """Put the model's topics in place of those that rules do not read whole."""
        if self.fault is not None:
            return rules
        more, less, days = self.choice
        kept = [one for one in rules if one.words in self.read]
        until = next((one.until for one in rules if one not in kept and one.until), None)
        until, known = now + days * DAY if days else until, {value_key(one.words) for one in kept}
        ways: tuple[tuple[Direction, Sequence[str]], ...] = ("more", more), ("less", less)
        return kept + [
            SaidTopic(words=name, direction=way, until=until, said_as=self.wish[:MAX_WORDS])
            for way, names in ways
            for name in names
            if value_key(name) not in known
        ]


class WishReader:
    """Sends wishes to a language model in threads, a few at once, each within a time."""

    def __init__(self) -> None:
        self._threads, self._calls = ThreadPoolExecutor(), set[asyncio.Future[str]]()
        self.connect = lru_cache(maxsize=1)(Endpoint)
        """Build the client of a model."""

    async def read(self, unread: bytes | None) -> Reading | None:
        """Read what a worker says of a wish, see ``Handlers.put_topics``; None if no worker did."""
        if unread is None:
            return Reading("", (), NameChoice(), BUSY)
        given = orjson.loads(unread)
        if not (names := given.get("names")):
            return None
        choice, fault = await self.choose(given["wish"], names, WishModel(**given["model"]))
        return Reading(given["wish"], given["read"], choice, fault)

    async def choose(
        self, wish: str, names: Sequence[str], config: EndpointConfig
    ) -> tuple[NameChoice, str | None]:
        """Choose names, or return why none were chosen."""
        if len(self._calls) >= config.concurrency:
            return NameChoice(), BUSY
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: choose_names(wish, names, self.connect(config))
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        fault = FAILED
        try:
            answer = await asyncio.wait_for(asyncio.shield(call), config.timeout_seconds)
            fault = OUTSIDE
            choice = read_choice(answer, wish, names)
        except TimeoutError:
            late = f"the language model took longer than {config.timeout_seconds:g} s"
            return NameChoice(), late
        except Exception as error:
            log("wish_unread", {"error": str(error)}, level=logging.WARNING)
            return NameChoice(), fault
        return choice, None if choice.more or choice.less else NOTHING
