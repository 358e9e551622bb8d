"""A local OpenAI-compatible server, for tests: scripted replies, a real socket.

    with openai_server(chat=lambda request: Reply({...}), embed=vectors_of) as server:
        EndpointConfig(base_url=server.base_url, model="any")

``server.requests`` keeps the body of every request, ``server.headers`` its headers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Request = dict[str, Any]


class Reply(NamedTuple):
    """What the server sends: a document as JSON, or bytes as they are; None hangs up."""

    body: Mapping[str, Any] | bytes | None
    status: int = 200
    headers: Mapping[str, str] = {}


def chat_reply(content: str | None, prompt_tokens: int = 100, completion_tokens: int = 50) -> Reply:
    """Wrap a model's words as the chat completions API does."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    message = {"role": "assistant", "content": content}
    return Reply(
        {"object": "chat.completion", "choices": [choice | {"message": message}], "usage": usage}
    )


def embeddings_reply(vectors: Sequence[Sequence[float]]) -> Reply:
    """Wrap vectors as the embeddings API does."""
    data = [
        {"object": "embedding", "index": index, "embedding": list(map(float, vector))}
        for index, vector in enumerate(vectors)
    ]
    return Reply({"object": "list", "data": data, "usage": {"prompt_tokens": 1}})


@dataclass
class OpenAIServer:
    """A running server and the requests that it got."""

    base_url: str
    requests: list[Request] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


@contextmanager
def openai_server(
    chat: Callable[[Request], Reply] | None = None, embed: Callable[[Request], Reply] | None = None
) -> Iterator[OpenAIServer]:
    """Serve on a free port of the loopback address until the block ends.

    Args:
        chat: Answers POST /v1/chat/completions; called from several threads at once.
        embed: Answers POST /v1/embeddings.
    """
    answers = {"/v1/chat/completions": chat, "/v1/embeddings": embed}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = json.loads(body)
            with lock:
                server.requests.append(request)
                server.headers.append(dict(self.headers))
            answer = answers.get(self.path)
            reply = (
                answer(request) if answer else Reply({"error": {"message": "no such path"}}, 404)
            )
            if reply.body is None:
                self.close_connection = True
                return
            content = (
                reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            )
            try:
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                # The caller's timeout was shorter than the reply.
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = OpenAIServer(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
