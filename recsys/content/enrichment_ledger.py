"""Ledger of a language model's requests and answers, so that none is paid for twice.

    <cache_dir>/<model>-<prompt version>-<digest>.jsonl
    {"key": K, "state": "sent", "bound": [900, 400]}     before a request: its upper bounds
    {"key": K, "state": "done", "values": {...}, ...}     its answer, settles the request before
    {"key": K, "state": "failed", "reason": "...", ...}   an answer that broke the schema, paid too

A key is the sha256 of the text under one model and prompt, so a changed text is a new key. Lines
are only added and each is flushed to the disk: a killed run loses the requests in flight, whose
bounds stay spent, so restarts cannot stretch a budget. A line that a kill cut off is passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from recsys.content.attributes import Attribute, AttributeSource, Value, checked
from recsys.content.prompt import Schema, Tokens
from recsys.data.durable import flush, locked

logger = logging.getLogger(__name__)


class EnrichmentLedger:
    """The answers of one model to one prompt, in memory and in their file."""

    def __init__(self, file: IO[bytes], model: str, prompt_version: str, schema: Schema) -> None:
        self.model, self.prompt_version, self._schema = model, prompt_version, schema
        self.answers: dict[str, dict[str, Attribute]] = {}
        self.failures: dict[str, list[str]] = {}
        self._settled: dict[str, Tokens] = {}
        self._open: dict[str, Tokens] = {}
        self._file = file
        self._lock = threading.Lock()
        file.seek(0)
        content = file.read()
        for line in content.splitlines():
            self._read(line)
        if content and not content.endswith(b"\n"):
            file.write(b"\n")

    def spent_on(self, keys: Iterable[str]) -> Tokens:
        """Add up the tokens of these texts' requests, those without an answer at their bound."""
        with self._lock:
            total = Tokens()
            for key in keys:
                total = total.plus(self._settled.get(key, Tokens()))
                total = total.plus(self._open.get(key, Tokens()))
            return total

    def send(self, key: str, bound: Tokens) -> None:
        """Write down that a request is about to be made, which takes at most ``bound``."""
        self._add({"key": key, "state": "sent", "bound": bound})

    def answer(
        self, key: str, values: Mapping[str, Value], time: str, spent: Tokens | None
    ) -> None:
        """Record an answer; where its tokens are unknown, the bound stays spent."""
        made = {"model": self.model, "prompt_version": self.prompt_version, "time": time}
        self._add({"key": key, "state": "done", "values": dict(values), **made, **tokens_of(spent)})

    def fail(self, key: str, reason: str, time: str, spent: Tokens | None) -> None:
        """Keep that an answer could not be used."""
        self._add(
            {"key": key, "state": "failed", "reason": reason, "time": time, **tokens_of(spent)}
        )

    def release(self, key: str) -> None:
        """Take back what the last request for a text reserved: no answer was paid for."""
        self._add({"key": key, "state": "unpaid"})

    def _add(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, ensure_ascii=True).encode()
        with self._lock:
            self._file.write(line + b"\n")
            flush(self._file)
            self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            document = json.loads(line)
            key, state = str(document["key"]), document["state"]
            if state == "sent":
                # An earlier request without an answer may have been paid for as well.
                self._settle(key, self._open.pop(key, Tokens()))
                self._open[key] = Tokens(*map(int, document["bound"]))
            elif state == "unpaid":
                self._open.pop(key, None)
            elif state == "failed":
                self._close(key, document)
                self.failures.setdefault(key, []).append(str(document["reason"]))
            elif state == "done":
                values = checked(document["values"], self._schema)
                made = AttributeSource(
                    *(str(document[name]) for name in ("model", "prompt_version", "time"))
                )
                self._close(key, document)
                self.failures.pop(key, None)
                self.answers[key] = {name: Attribute(value, made) for name, value in values.items()}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("damaged line in the ledger", extra={"reason": str(error)})

    def _close(self, key: str, document: Mapping[str, Any]) -> None:
        bound = self._open.pop(key, Tokens())
        if "prompt_tokens" in document:
            spent = Tokens(int(document["prompt_tokens"]), int(document["completion_tokens"]))
        else:
            spent = bound
        self._settle(key, spent)

    def _settle(self, key: str, spent: Tokens) -> None:
        self._settled[key] = self._settled.get(key, Tokens()).plus(spent)


def tokens_of(spent: Tokens | None) -> dict[str, int]:
    """Write counts as fields of a line; none where they are not known."""
    return {} if spent is None else dict(spent._asdict())


@contextmanager
def open_ledger(
    cache_dir: Path, model: str, prompt_version: str, schema: Schema
) -> Iterator[EnrichmentLedger]:
    """Open the ledger of a model and prompt for this process alone, or refuse."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:80]
    digest = hashlib.sha256(f"{model}\0{prompt_version}".encode()).hexdigest()[:8]
    path = cache_dir / f"{readable}-{prompt_version}-{digest}.jsonl"
    with locked(path, wait=False) as held, path.open("ab+") as file:
        if not held:
            raise ValueError(
                f"another process enriches items with {model} ({path} is locked); "
                "wait for it, its answers will count here too"
            )
        yield EnrichmentLedger(file, model, prompt_version, schema)


def text_key(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class BudgetSpentError(ValueError):
    """The next request could exceed the budget."""


class Enrichment(NamedTuple):
    """The attributes of each text, in order, and their cost."""

    attributes: list[Mapping[str, Attribute] | None]
    reasons: list[str | None]
    """Why a text has no attributes."""
    spent: Tokens
    """On these texts, by this run and all before it."""
    num_requests: int
    """Requests of this run."""
    budget_reached: bool
    num_left_out: int
    """Texts whose answers broke the schema as often as they were requested."""
