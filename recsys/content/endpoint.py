"""The client of OpenAI-compatible servers: answers in JSON of a schema, and embeddings.

Retries are made here and nowhere else, because every attempt that may be paid for counts
against the budget.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from recsys.content.config import EmbeddingEndpointConfig, EndpointConfig
from recsys.content.prompt import (
    TEMPLATE_TOKENS,
    Completion,
    CompletionLog,
    EndpointError,
    EndpointRefusedError,
    EndpointUnreachableError,
    Prompt,
    Schema,
    Tokens,
)

MAX_WAIT_SECONDS = 60.0
SCHEMA_FOLLOWS = "\nThe answer is JSON alone, of this JSON schema: "
_NO_SCHEMAS = re.compile(r"response_format|json_schema|structured", re.IGNORECASE)
"""In the refusal of a server that cannot hold a model to a schema."""


class Endpoint:
    """A language model over HTTP, reached through the openai SDK."""

    def __init__(
        self, config: EndpointConfig, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Read the key; no request is made."""
        try:
            import openai
        except ModuleNotFoundError:
            raise ValueError(
                "the package openai is not installed, which endpoints are reached through; "
                "pip install openai"
            ) from None
        # Some key must be passed, or the SDK takes OPENAI_API_KEY, which may be another server's.
        self._key = "none"
        if config.api_key_variable:
            self._key = os.environ.get(config.api_key_variable, "").strip()
            if not self._key:
                raise ValueError(
                    f"the environment variable {config.api_key_variable} is not set; "
                    f"put the key of {config.base_url} there"
                )
        self.config = config
        self._openai = openai
        self._sleep = sleep
        self._takes_schemas = True
        self._pace, self._free = threading.Lock(), 0.0
        # One place retries, here, because every attempt must be charged.
        self._client = openai.OpenAI(
            api_key=self._key,
            base_url=config.base_url,
            timeout=config.timeout_seconds,
            max_retries=0,
        )
        # No caller says that an encoder is done; its connections close with it.
        weakref.finalize(self, self._client.close)

    @property
    def name(self) -> str:
        parts = urlsplit(self.config.base_url)
        return f"{self.config.model}@{parts.netloc}{parts.path}"

    def token_bound(self, prompt: Prompt, schema: Schema, max_tokens: int) -> Tokens:
        read = [prompt.instructions, prompt.delimited(), SCHEMA_FOLLOWS, json.dumps(dict(schema))]
        num_bytes = sum(len(part.encode("utf-8", "replace")) for part in read)
        return Tokens(num_bytes + TEMPLATE_TOKENS, max_tokens)

    def complete_json(
        self, prompts: Sequence[Prompt], schema: Schema, *, max_tokens: int, log: CompletionLog
    ) -> None:
        """Answer every prompt through ``log``, several at once.

        A server that refuses schemas gets them as words from then on. An interrupted call waits
        for the requests in flight, which are paid for, and records them.
        """
        create = self._client.chat.completions.with_raw_response.create

        def reply_to(index: int) -> dict[str, Any]:
            body = self._chat_body(prompts[index], schema, max_tokens)
            try:
                return self.request(create, body, lambda: log.charge(index))
            except (EndpointRefusedError, EndpointUnreachableError):
                raise
            except EndpointError as error:
                if "response_format" not in body or not _NO_SCHEMAS.search(str(error)):
                    raise
                self._takes_schemas = False
                body = self._chat_body(prompts[index], schema, max_tokens)
                return self.request(create, body, lambda: log.charge(index))

        def answer(index: int) -> None:
            try:
                log.charge(index)
                log.record(index, read_completion(reply_to(index)))
            except Exception as error:
                log.record(index, error)

        executor = ThreadPoolExecutor(self.config.concurrency)
        try:
            list(executor.map(answer, range(len(prompts))))
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """Ask for one vector a text; the reply's ``data`` in the order of the texts, unchecked."""
        body: dict[str, Any] = {
            "model": self.config.model,
            "input": list(texts),
            "encoding_format": "float",
        }
        if isinstance(self.config, EmbeddingEndpointConfig) and self.config.send_dimensions:
            body["dimensions"] = self.config.dim
        reply = self.request(self._client.embeddings.with_raw_response.create, body)
        data = reply.get("data")
        if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
            raise EndpointError(
                f"{self.name} gave no list of embeddings; is it an embedding model?"
            )
        places = [one.get("index", place) for place, one in enumerate(data)]
        if len(data) != len(texts) or sorted(map(str, places)) != sorted(
            map(str, range(len(data)))
        ):
            raise EndpointError(
                f"{self.name} gave {len(data)} embeddings for {len(texts)} texts, numbered "
                f"{str(places[:5])[1:-1]}...; nothing of this batch was kept"
            )
        by_place = {
            int(place): one.get("embedding") for place, one in zip(places, data, strict=True)
        }
        return [by_place[place] for place in range(len(texts))]

    def request(
        self,
        create: Callable[..., Any],
        body: Mapping[str, Any],
        charge: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Send a request, again where that can help, and parse the reply."""
        sdk, reason, may_be_paid, retry_after = self._openai, "", False, None
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                self._sleep(self._wait_seconds(attempt, retry_after))
                if may_be_paid:
                    charge()
            self._wait_turn()
            try:
                reply = json.loads(create(**body).text)
                if isinstance(reply, dict):
                    return reply
                reason, may_be_paid, retry_after = "a reply that is no JSON object", True, None
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                reason, may_be_paid, retry_after = "a reply that is no JSON", True, None
            except sdk.APITimeoutError:
                reason = f"no reply within timeout_seconds = {self.config.timeout_seconds:g}"
                may_be_paid, retry_after = True, None
            except sdk.APIStatusError as error:
                if not (error.status_code in (408, 409, 429) or error.status_code >= 500):
                    raise self._refusal(error.status_code, str(error)) from None
                reason = f"status {error.status_code}: {self._scrubbed(str(error))}"
                may_be_paid, retry_after = False, error.response.headers.get("retry-after")
            except sdk.APIConnectionError as error:
                reason = f"no connection: {self._scrubbed(str(error.__cause__ or error))}"
                may_be_paid, retry_after = False, None
        raise EndpointUnreachableError(
            f"{self.name}: {reason}, after {self.config.max_retries + 1} attempts; "
            "see whether the server is up and run again: what is done is kept",
            may_be_paid=may_be_paid,
        )

    def _wait_turn(self) -> None:
        """Wait until another request may begin."""
        if self.config.requests_per_second is not None:
            with self._pace:
                now = time.monotonic()
                wait = max(0.0, self._free - now)
                self._free = now + wait + 1 / self.config.requests_per_second
            self._sleep(wait)

    def _chat_body(self, prompt: Prompt, schema: Schema, max_tokens: int) -> dict[str, Any]:
        words, held = SCHEMA_FOLLOWS + json.dumps(dict(schema)), self._takes_schemas
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [
                {"role": "system", "content": prompt.instructions + ("" if held else words)},
                {"role": "user", "content": prompt.delimited()},
            ],
            self.config.token_limit_field: max_tokens,
        }
        if held:
            answer = {"name": "answer", "schema": dict(schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        temperature = self.config.temperature
        return body if temperature is None else body | {"temperature": temperature}

    def _wait_seconds(self, attempt: int, retry_after: str | None) -> float:
        if retry_after is not None and re.fullmatch(r"\d{1,6}(\.\d+)?", retry_after):
            return min(float(retry_after), MAX_WAIT_SECONDS)
        doubled = self.config.first_wait_seconds * 2.0 ** (attempt - 1)
        # Clients that failed together must not return together.
        return min(doubled, MAX_WAIT_SECONDS) * random.uniform(0.75, 1.25)

    def _refusal(self, status: int, message: str) -> EndpointError:
        reason = f"{self.name} refused with status {status}: {self._scrubbed(message)}"
        variable = self.config.api_key_variable or "api_key_variable (none is named)"
        if status in (401, 403):
            return EndpointRefusedError(f"{reason}; check the key in {variable}")
        if status in (404, 405):
            return EndpointRefusedError(f"{reason}; check base_url and model")
        return EndpointError(reason)

    def _scrubbed(self, message: str) -> str:
        """Shorten a server's words, and take the key out if the server repeats it."""
        if self.config.api_key_variable:
            message = message.replace(self._key, "***")
        line = " ".join(message.split())
        return line if len(line) <= 200 else f"{line[:200]}..."


def read_completion(reply: Mapping[str, Any]) -> Completion:
    """Read a chat reply; an answer that is missing is an empty one, which no schema accepts."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    usage = reply.get("usage")
    counts = [
        usage.get(name) if isinstance(usage, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    ]
    read, written = (one if type(one) is int and one >= 0 else None for one in counts)
    tokens = None if read is None or written is None else Tokens(read, written)
    return Completion(content if isinstance(content, str) else "", tokens)
