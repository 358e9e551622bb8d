"""Ask a language model what items are about, within a budget, and never twice for one text.

Every request is written to a ledger before it is sent and after it is answered
(recsys/content/enrichment_ledger.py). The budget covers all that was ever spent on the texts at
hand under this model and prompt, whichever run spent it, so a killed and restarted run cannot
exceed it. A request is made only if its upper bound still fits, so the stop is hard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from recsys.content.attribute_schema import Extraction, build_extraction
from recsys.content.attributes import parse_reply
from recsys.content.config import EnrichmentConfig
from recsys.content.endpoint import Endpoint
from recsys.content.enrichment_ledger import (
    BudgetSpentError,
    Enrichment,
    EnrichmentLedger,
    open_ledger,
    text_key,
)
from recsys.content.prompt import (
    Completion,
    EndpointError,
    EndpointRefusedError,
    Prompt,
    Tokens,
    clean_text,
)

logger = logging.getLogger(__name__)
MAX_FAULT_CHARS = 400
"""Most characters of a fault that the next request quotes."""


def enrich(
    texts: Sequence[str],
    model: Endpoint,
    cache_dir: Path,
    config: EnrichmentConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Enrichment:
    """Find the attributes of texts: from the ledger, or else from the model."""
    lines = [clean_text(text)[: config.max_text_chars].rstrip() for text in texts]
    keys = [text_key(line) for line in lines]
    extraction = build_extraction(config.attributes)
    with open_ledger(cache_dir, model.name, extraction.version, extraction.schema) as ledger:
        wanted = {key: line for key, line in zip(keys, lines, strict=True) if line}
        session = Session(ledger, model, config, wanted, progress, extraction)
        session.run()
        attributes = [ledger.answers.get(key) or None if key in wanted else None for key in keys]
        reasons = [
            None if found else session.reason(key) if key in wanted else "no text"
            for found, key in zip(attributes, keys, strict=True)
        ]
        result = Enrichment(
            attributes=list(attributes),
            reasons=reasons,
            spent=session.spent,
            num_requests=session.num_requests,
            budget_reached=session.budget_reached,
            num_left_out=sum(
                found is None and key in wanted and key in ledger.failures
                for found, key in zip(attributes, keys, strict=True)
            ),
        )
    logger.info(
        "enriched texts",
        extra={
            "model": model.name,
            "texts": len(texts),
            "requests": result.num_requests,
            "without": sum(reason is not None for reason in reasons),
            **result.spent._asdict(),
        },
    )
    return result


class Session:
    """One run over the texts that lack an answer; the log that a language model reports to."""

    def __init__(
        self,
        ledger: EnrichmentLedger,
        model: Endpoint,
        config: EnrichmentConfig,
        texts: Mapping[str, str],
        progress: Callable[[int, int], None] | None,
        extraction: Extraction,
    ) -> None:
        self._ledger, self._model, self._config, self._texts = ledger, model, config, texts
        self._progress = progress
        self._extraction = extraction
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._prompts: list[Prompt] = []
        self._bounds: dict[str, Tokens] = {}
        self._without_answer: dict[str, str] = {}
        self._in_a_row = self._done = self.num_requests = 0
        self._fatal: Exception | None = None
        self.budget_reached = False
        self.spent = ledger.spent_on(texts)

    def run(self) -> None:
        """Request until every text has an answer or has used up its attempts."""
        for attempt in range(1, self._config.max_attempts + 1):
            self._keys = [
                key
                for key in self._texts
                if key not in self._ledger.answers
                and len(self._ledger.failures.get(key, ())) < attempt
            ]
            self._prompts = [self._prompt(key) for key in self._keys]
            self._done = 0
            if self._keys and not self.budget_reached:
                schema, most = self._extraction.schema, self._config.max_reply_tokens
                self._model.complete_json(self._prompts, schema, max_tokens=most, log=self)
            if self._fatal is not None:
                raise self._fatal

    def _prompt(self, key: str) -> Prompt:
        """Ask about one text; again with the faults of the reply before."""
        faults = self._ledger.failures.get(key, [""])
        return self._extraction.prompt(self._texts[key], repair=faults[-1][:MAX_FAULT_CHARS])

    def charge(self, index: int) -> None:
        """Reserve what a request takes at most."""
        key, prompt = self._keys[index], self._prompts[index]
        schema = self._extraction.schema
        bound = self._model.token_bound(prompt, schema, self._config.max_reply_tokens)
        with self._lock:
            if self._fatal is not None:
                raise self._fatal
            after = self.spent.plus(bound)
            if after.total > self._config.token_budget:
                self.budget_reached = True
                raise BudgetSpentError(f"the next request may take {bound.total} tokens")
            self.spent, self._bounds[key] = after, bound
            self.num_requests += 1
            self._ledger.send(key, bound)

    def record(self, index: int, answer: Completion | Exception) -> None:
        """Keep an answer, or decide what its absence means."""
        key = self._keys[index]
        with self._lock:
            if isinstance(answer, Completion):
                self._settle(key, answer.tokens)
                self._keep(key, answer, self._prompts[index].mark)
                self._in_a_row = 0
                self._without_answer.pop(key, None)
            elif isinstance(answer, EndpointError):
                self._miss(key, answer)
            elif not isinstance(answer, BudgetSpentError) and self._fatal is None:
                self._fatal = answer
            self._done += 1
            if self._progress is not None and self._fatal is None and not self.budget_reached:
                self._progress(self._done, len(self._keys))

    def reason(self, key: str) -> str:
        """Return why a text has no attributes."""
        if reasons := self._ledger.failures.get(key):
            return reasons[-1]
        if key not in self._ledger.answers:
            return self._without_answer.get(key) or "not requested: the budget is spent"
        return "the text says none of the attributes"

    def _settle(self, key: str, tokens: Tokens | None) -> None:
        bound = self._bounds.pop(key)
        if tokens is not None:
            self.spent = self.spent.minus(bound).plus(tokens)

    def _keep(self, key: str, answer: Completion, mark: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            values = parse_reply(answer.text, mark, self._extraction.schema)
        except ValueError as error:
            self._ledger.fail(key, str(error), now, answer.tokens)
        else:
            self._ledger.answer(key, values, now, answer.tokens)

    def _miss(self, key: str, error: EndpointError) -> None:
        """Note that no answer came; stop where none will come."""
        if error is self._fatal:
            return
        if not error.may_be_paid and key in self._bounds:
            self._settle(key, Tokens())
            self._ledger.release(key)
        self._bounds.pop(key, None)
        self._without_answer[key] = str(error)
        self._in_a_row += 1
        if isinstance(error, EndpointRefusedError) or (
            self._in_a_row >= self._config.max_unreachable and self._fatal is None
        ):
            self._fatal = error
