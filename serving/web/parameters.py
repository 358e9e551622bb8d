"""Query parameters of the routes that make no list; of the others see `serving.schemas`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from serving.schemas import Id, Parameters


class SearchParameters(Parameters):
    """Of ``/v1/search``."""

    q: str = Field(default="", max_length=200)
    """Words of a title, or their beginnings; empty lists the most popular items."""
    k: int = Field(default=10, ge=1, le=50)


class ItemsParameters(Parameters):
    """Of ``/v1/items``."""

    id: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        min_length=1, max_length=100
    )
    """Repeat it for more than one item."""


class UsersParameters(Parameters):
    """Of ``/v1/users``."""

    prefix: str = Field(default="", max_length=512)
    k: int = Field(default=10, ge=1, le=50)
    random: bool = False
    """Whether to draw users at random; ``prefix`` is then ignored."""


class HistoryParameters(Parameters):
    """Of ``/v1/users/{user_id}/history``."""

    k: int = Field(default=50, ge=1, le=500)


class ExplainParameters(Parameters):
    """Of ``/v1/explain/{request_id}``."""

    item_id: Id | None = None
    """An item that may be missing from the list; the reply then says why."""
    phrase: bool = False
    """Whether the endpoint that the server is configured with rewords the sentences."""
