"""Python client of a server: `Client`, and `AsyncClient` for asyncio."""

from serving.client.asynchronous import AsyncClient
from serving.client.blocking import Client
from serving.client.calls import ServerError, UnreachableError

__all__ = ["AsyncClient", "Client", "ServerError", "UnreachableError"]
