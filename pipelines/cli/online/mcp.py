"""The command ``recsys mcp``: a server's API as tools of an agent."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pipelines.engine.console import log

Transport = Literal["stdio", "http"]


def mcp(
    url: Annotated[str, typer.Option(help="The server to call.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None,
        typer.Option(
            envvar="RECSYS_API_KEY",
            help="Key of recsys keys add, for stdio; over http each agent sends its own.",
            show_default=False,
        ),
    ] = None,
    transport: Annotated[
        Transport, typer.Option(help="stdio: the agent starts this command; http: it connects.")
    ] = "stdio",
    host: Annotated[str, typer.Option(help="Address to listen on, for http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, for http.")] = 8765,
    allow_events: Annotated[
        bool, typer.Option("--allow-events", help="Also a tool that stores events.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a call may take.", min=0.1)] = 10.0,
) -> None:
    """Give agents a running server as tools (Model Context Protocol); read-only by default.

    Tools: recommend, search, similar, explain, why_not and, where allowed, send_event. Keys and
    limits are the server's.

    [bold]Examples[/]

      recsys mcp

      recsys mcp --transport http --port 8765
    """
    from serving.client.agent_server import PATH, DoorOptions, serve_http, serve_stdio

    options = DoorOptions(url=url, key=key, allow_events=allow_events, timeout=timeout)
    if transport == "stdio":
        serve_stdio(options)
        return
    log.print(f"http://{host}:{port}{PATH} calls {url}", markup=False, soft_wrap=True)
    serve_http(options, host, port)
