"""Python client of a server: `Client`, and `AsyncClient` for asyncio."""

from serving.client.calls import ServerError, UnreachableError
from serving.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "ServerError", "UnreachableError"]
