"""What the server takes from uvicorn beyond its documented interface."""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

TO_DO = (
    "serving/server/connections.py and run.py extend classes that uvicorn may change in any "
    "release; to allow another one read what changed in uvicorn/protocols/http/httptools_impl.py "
    "and uvicorn/server.py, run tests/serving/server with it, then widen pyproject.toml"
)


def test_the_version_is_one_of_those_that_are_tested():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(line) for line in project["dependencies"]]
    (wanted,) = [one.specifier for one in requirements if one.name == "uvicorn"]
    assert wanted.contains(version("uvicorn")), TO_DO
    assert any(one.operator in ("<", "==", "~=") for one in wanted), TO_DO


METHODS = "connection_made connection_lost data_received on_headers_complete on_message_complete"
METHODS += " on_body on_response_complete send_400_response shutdown _start_asgi_task"
FIELDS = "default_headers disconnected flow keep_alive message_event more_body on_response"
FIELDS += " response_complete response_started transport"


def test_the_private_names_are_there():
    assert set(METHODS.split()) <= set(vars(HttpToolsProtocol)), TO_DO
    cycle = inspect.getsource(RequestResponseCycle)
    for name in FIELDS.split():
        assert f"self.{name} = " in cycle or f"self.{name}: " in cycle, (name, TO_DO)
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n", TO_DO
    assert {"connections", "tasks"} <= set(vars(ServerState())), TO_DO
    assert list(inspect.signature(Server.shutdown).parameters) == ["self", "sockets"], TO_DO
