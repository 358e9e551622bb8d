"""Topics that a user said, as the online store keeps them: a JSON list, the latest last.

They are kept by their words: what is said again replaces what was said before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, model_validator

from recsys.models.text_search.tokens import fold
from recsys.models.text_search.wishes import parse_wish
from serving.schemas import Direction, Strict, Wish

MAX_TOPICS = 100
"""Topics that are kept of a user, the latest."""
MAX_WORDS = 200


class SaidTopic(Strict):
    """Something that a user wants more or less of."""

    words: Annotated[str, Field(min_length=1, max_length=MAX_WORDS)]
    """Looked up among categories, other values of properties, and words of titles."""
    direction: Direction = "more"
    """``never`` leaves the items out."""
    strength: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """At 1 the place of an item is divided (more) or multiplied (less) by 8."""
    until: Annotated[float, Field(ge=0, lt=1 << 40, allow_inf_nan=False)] | None = None
    """Unix second at which it ends; by default it holds for good."""
    said_as: Annotated[str, Field(max_length=MAX_WORDS)] | None = None
    """Begin of the wish that a language model read it in; absent if rules read it."""

    @property
    def wanted(self) -> tuple[str, Direction, float]:
        """Its words, direction and strength."""
        return self.words, self.direction, self.strength


class TopicsRequest(Strict):
    """Either a wish, which is added to the topics that are kept, or all topics that are kept."""

    wish: Wish | None = None
    """Plain words, such as ``less horror this week``."""
    topics: list[SaidTopic] | None = Field(default=None, max_length=MAX_TOPICS)

    @model_validator(mode="after")
    def _has_one(self) -> TopicsRequest:
        if (self.wish is None) == (self.topics is None):
            raise ValueError("send either wish or topics")
        return self

    def said(self, now: float) -> list[SaidTopic]:
        """Return what is said at a unix second."""
        return said_topics(self.wish or "", now) if self.topics is None else self.topics

    def change(self, kept: str, now: float, said: Sequence[SaidTopic] | None = None) -> str:
        """Make the topics that are kept after this request from those before.

        Args:
            said: What is said, by default as rules read it.
        """
        before = read_topics(kept) if self.topics is None else []
        return write_topics([*before, *(self.said(now) if said is None else said)], now)


_TOPICS = TypeAdapter(list[SaidTopic])


def said_topics(wish: str, now: float) -> list[SaidTopic]:
    """Read a wish that is said at a unix second."""
    return [
        SaidTopic(
            words=words[:MAX_WORDS],
            direction=direction,
            strength=strength,
            until=None if seconds is None else now + seconds,
        )
        for words, direction, strength, seconds in parse_wish(wish)
    ]


def read_topics(kept: str) -> list[SaidTopic]:
    """Read the topics that are kept."""
    return _TOPICS.validate_json(kept) if kept else []


def write_topics(topics: Iterable[SaidTopic], now: float) -> str:
    """Write topics to keep, without those that have ended and those said again later."""
    latest: dict[str, SaidTopic] = {}
    for topic in topics:
        latest.pop(fold(topic.words), None)
        latest[fold(topic.words)] = topic
    found = in_time(latest.values(), now)[-MAX_TOPICS:]
    return orjson.dumps([one.model_dump() for one in found]).decode() if found else ""


def without_topic(kept: str, words: str | None, now: float) -> str:
    """Take the topic of these words, or without words all, out of those that are kept."""
    if words is None:
        return ""
    return write_topics([one for one in read_topics(kept) if fold(one.words) != fold(words)], now)


def in_time(topics: Iterable[SaidTopic], now: float) -> Sequence[SaidTopic]:
    """Leave out topics that have ended at a unix second."""
    return [topic for topic in topics if topic.until is None or topic.until > now]
