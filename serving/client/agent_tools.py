"""Tools for agents: what each takes, and the call of the API that it is.

Arguments are the API's own fields, refused by name where they are wrong. Titles and other texts of
the catalogue are part of a reply's JSON, never of a tool's description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from serving.client import calls
from serving.client.calls import Call
from serving.online.events import EventType
from serving.schemas import MAX_EXPLAINED, MAX_QUERY, Id, Request, Strict


class Recommend(Request):
    """Recommend items to a user, for a visit, beside an item or for a query.

    Give `user_id`, `session` (item ids, oldest first), both or neither; `item_id` with surface
    related, `query` with surface search. Each item comes with a reason.
    """

    k: int = Field(default=10, ge=1, le=MAX_EXPLAINED)
    explain: bool = True
    dry_run: bool = True
    """Whether the list leaves no trace. Set it to false for a list that the user will see: it is
    then kept and counts as shown, and explain and why_not know its request_id."""


class Search(Strict):
    """Find items by words of their titles; misspelt words are corrected."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)
    k: int = Field(default=10, ge=1, le=MAX_EXPLAINED)


class Similar(Strict):
    """List items like one item."""

    item_id: Id
    k: int = Field(default=10, ge=1, le=MAX_EXPLAINED)


class Explain(Strict):
    """Say why a kept list is as it is: a reason for each item, and what the list was made from."""

    request_id: Id
    """Of a list that was not a dry run, up to a week old."""


class WhyNot(Strict):
    """Say why an item is not in a kept list: the first step at which it was lost."""

    request_id: Id
    """Of a list that was not a dry run, up to a week old."""
    item_id: Id


class SendEvent(Strict):
    """Store what a user did with an item; later lists of that user follow it."""

    user_id: Id
    item_id: Id
    event_type: EventType = "view"
    request_id: Id | None = None
    """Of the list that the item was in."""
    slot: int | None = Field(default=None, ge=1)
    """Its place in that list, from 1."""
    event_id: Id | None = None
    """An event of the same id is stored once; made where it is missing."""


def _recommend(given: Recommend) -> Call[Any]:
    fields = given.model_dump(exclude_none=True, exclude={"user_id"})
    return calls.recommend(given.user_id, **fields)


def _send_event(given: SendEvent) -> Call[Any]:
    return calls.event(**given.model_dump(exclude_none=True))


@dataclass(frozen=True, kw_only=True)
class AgentTool:
    """One tool."""

    name: str
    arguments: type[BaseModel]
    call: Callable[[Any], Call[Any]]
    writes: bool = False
    """Whether it stores something; such a tool is there only where that is allowed."""
    of_list: bool = False
    """Whether it is about a list that was made before, maybe a moment ago."""

    @property
    def description(self) -> str:
        """What it does, for the agent."""
        return " ".join((self.arguments.__doc__ or "").split())

    def schema(self) -> dict[str, Any]:
        """Describe its arguments as JSON schema."""
        return self.arguments.model_json_schema()

    def of(self, arguments: Mapping[str, Any]) -> Call[Any]:
        """Check arguments and give the call.

        Raises:
            ValueError: Names each wrong argument and what is allowed.
        """
        try:
            given = self.arguments.model_validate_json(orjson.dumps(dict(arguments)))
        except ValidationError as error:
            raise ValueError(f"{self.name}: {'; '.join(self._faults(error))}") from None
        return self.call(given)

    def _faults(self, error: ValidationError) -> list[str]:
        known = ", ".join(self.arguments.model_fields)
        found = []
        for one in error.errors(include_url=False, include_context=False, include_input=False):
            name = ".".join(map(str, one["loc"])).encode("ascii", "backslashreplace").decode()[:80]
            if one["type"] == "extra_forbidden":
                found.append(f"{name}: no such argument; it takes {known}")
            else:
                message = one["msg"].removeprefix("Value error, ")
                found.append(f"{name}: {message}" if name else message)
        return found


TOOLS = (
    AgentTool(name="recommend", arguments=Recommend, call=_recommend),
    AgentTool(name="search", arguments=Search, call=lambda a: calls.search(a.query, a.k)),
    AgentTool(name="similar", arguments=Similar, call=lambda a: calls.similar(a.item_id, a.k)),
    AgentTool(
        name="explain",
        arguments=Explain,
        call=lambda a: calls.explain(a.request_id),
        of_list=True,
    ),
    AgentTool(
        name="why_not",
        arguments=WhyNot,
        call=lambda a: calls.explain(a.request_id, a.item_id),
        of_list=True,
    ),
    AgentTool(name="send_event", arguments=SendEvent, call=_send_event, writes=True),
)


def tool_named(name: str, *, allow_events: bool) -> AgentTool:
    """Find a tool.

    Raises:
        ValueError: There is none of that name, or it stores something and that is not allowed.
    """
    allowed = {tool.name: tool for tool in TOOLS if allow_events or not tool.writes}
    if name in allowed:
        return allowed[name]
    if any(tool.name == name for tool in TOOLS):
        raise ValueError(f"{name} is switched off; recsys mcp --allow-events switches it on")
    shown = name.encode("ascii", "backslashreplace").decode()[:80]
    raise ValueError(f"there is no tool {shown!r}; there are {', '.join(allowed)}")
