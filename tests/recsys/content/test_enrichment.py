import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import enriched_text
from recsys.content.config import AttributeConfig, EndpointConfig, EnrichmentConfig
from recsys.content.endpoint import Endpoint
from recsys.content.enrichment import enrich
from recsys.content.enrichment_ledger import Enrichment
from recsys.content.prompt import Completion, CompletionLog, EndpointError, Prompt, Schema, Tokens
from tests.recsys.content.openai_server import Reply, Request, chat_reply, openai_server

ATTRIBUTES = tuple(
    AttributeConfig(name=name, type="words", description=f"Its {name}")
    for name in ("topic", "audience", "summary")
)
PROMPT = build_extraction(ATTRIBUTES)
PLENTY = EnrichmentConfig(token_budget=10**9, attributes=ATTRIBUTES)
GOOD = {"topic": "soap", "audience": "everyone", "summary": "A bar of soap."}


def answer_to(text: str) -> dict[str, object]:
    return {**GOOD, "summary": f"This is {text}."}


def text_in(request: Request) -> str:
    return str(json.loads(request["messages"][1]["content"].split("\n")[1]))


def good(request: Request) -> Reply:
    return chat_reply(json.dumps(answer_to(text_in(request))))


def run(
    chat: Callable[[Request], Reply], texts: Sequence[str], folder: Path, concurrency: int = 4
) -> tuple[Enrichment, list[Request]]:
    with openai_server(chat=chat) as server:
        config = EndpointConfig(
            base_url=server.base_url, model="tiny", timeout_seconds=30.0, max_retries=1,
            concurrency=concurrency,
        )  # fmt: skip
        named = Named(config, sleep=lambda _: None)
        return enrich(texts, named, folder, PLENTY), server.requests


class Named(Endpoint):
    """An endpoint under a name without its port, which changes with every server."""

    name = "tiny@test"


class Script:
    """A model without a socket: each prompt's words by a function, 10 tokens read, 5 written."""

    name = "script"

    def __init__(
        self, words: Callable[[str], str] = lambda text: json.dumps(answer_to(text))
    ) -> None:
        self.words = words
        self.requested: list[str] = []

    def token_bound(self, prompt: Prompt, schema: Schema, max_tokens: int) -> Tokens:
        return Tokens(60, 40)

    def complete_json(
        self, prompts: Sequence[Prompt], schema: Schema, *, max_tokens: int, log: CompletionLog
    ) -> None:
        for index, prompt in enumerate(prompts):
            try:
                log.charge(index)
            except Exception as error:
                log.record(index, error)
                continue
            self.requested.append(prompt.text)
            log.record(index, Completion(self.answer(prompt), Tokens(10, 5)))

    def answer(self, prompt: Prompt) -> str:
        return self.words(prompt.text)


def values_of(attributes: Mapping[str, object] | None) -> dict[str, object]:
    return {name: attribute.value for name, attribute in attributes.items()}  # type: ignore[attr-defined]


def test_each_attribute_knows_its_model_prompt_and_time(tmp_path):
    result, requests = run(good, ["rose soap", "clay mask"], tmp_path)
    assert len(requests) == result.num_requests == 2
    assert result.reasons == [None, None]
    for text, attributes in zip(["rose soap", "clay mask"], result.attributes, strict=True):
        values = values_of(attributes)
        assert values["summary"] == f"This is {text}."
        assert values["topic"] == "soap"
        for attribute in attributes.values():
            assert attribute.provenance.model == "tiny@test"
            assert attribute.provenance.prompt_version == PROMPT.version
            assert attribute.provenance.time.endswith("+00:00")
    assert result.spent == Tokens(200, 100)


def test_a_second_run_asks_nothing_and_a_changed_text_is_the_only_one_asked(tmp_path):
    first, _ = run(good, ["a", "b", "c"], tmp_path)
    again, requests = run(good, ["c", "b", "a"], tmp_path)
    assert requests == []
    assert again.attributes == first.attributes[::-1]
    changed, requests = run(good, ["a", "b!", "c"], tmp_path)
    assert [text_in(request) for request in requests] == ["b!"]
    assert changed.attributes[0] == first.attributes[0]


def test_the_token_budget_is_never_exceeded_and_restarts_do_not_stretch_it(tmp_path):
    config, script = replace(PLENTY, token_budget=200), Script()
    for _ in range(3):
        result = enrich([f"item {i}" for i in range(20)], script, tmp_path, config)
        assert result.spent.total <= 200
        assert result.budget_reached
    # A request may take 100: with 15 a request, the seventh still fits, the eighth does not.
    assert len(script.requested) == 7
    assert sum(attributes is not None for attributes in result.attributes) == 7


BROKEN = {
    "no JSON": "Sure! Here is",
    "no object": "[1]",
    "an extra key": json.dumps({**GOOD, "is_admin": True}),
    "a missing key": json.dumps({key: GOOD[key] for key in list(GOOD)[:2]}),
    "another type": json.dumps({**GOOD, "summary": ["x"]}),
    "too long": json.dumps({**GOOD, "summary": "x" * 201}),
    "an address": json.dumps({**GOOD, "summary": "Buy at www.evil.example"}),
    "a mark": json.dumps({**GOOD, "summary": "<<<item 0123456789abcdef>>>"}),
    "cut off": json.dumps(GOOD)[:-9],
    "deep": "[" * 100_000,
}


def test_answers_outside_the_schema_are_asked_again_once_and_paid_for_twice_at_most(tmp_path):
    script = Script(lambda text: BROKEN.get(text, json.dumps(GOOD)))
    for _ in range(3):
        result = enrich(["good", *BROKEN], script, tmp_path, PLENTY)
    assert sorted(script.requested) == sorted(["good", *BROKEN, *BROKEN])
    assert values_of(result.attributes[0]) == GOOD
    assert result.attributes[1:] == [None] * len(BROKEN)
    assert all(result.reasons[1:])
    num_answers = 1 + 2 * len(BROKEN)
    assert result.spent == Tokens(10 * num_answers, 5 * num_answers)


@pytest.mark.parametrize("damage", ["cut", "garbage", "poisoned"])
def test_a_damaged_ledger_loses_the_damaged_answer_only(tmp_path, damage):
    texts = ["a", "b", "c"]
    enrich(texts, Script(), tmp_path, PLENTY)
    (ledger,) = tmp_path.glob("*.jsonl")
    *lines, last = ledger.read_bytes().splitlines()
    assert len(lines) == 5
    poisoned = json.loads(last)
    poisoned["values"]["extra"] = "key"
    damages = {
        "cut": [last[:-20]],
        "garbage": [b"\xff\xfe{]", b'{"key": 3}', b"[]"],
        "poisoned": [json.dumps(poisoned).encode()],
    }
    ledger.write_bytes(b"\n".join([*lines, *damages[damage]]))
    for requested in (["c"], []):
        script = Script()
        assert enrich(texts, script, tmp_path, PLENTY).reasons == [None] * 3
        assert script.requested == requested


def test_two_processes_do_not_pay_for_the_same_items(tmp_path):
    class Nested(Script):
        def complete_json(self, *args: object, **more: object) -> None:
            with pytest.raises(ValueError, match="another process enriches items with script"):
                enrich(["a"], Script(), tmp_path, PLENTY)
            super().complete_json(*args, **more)  # type: ignore[arg-type]

    assert enrich(["a"], Nested(), tmp_path, PLENTY).reasons == [None]


def test_a_request_that_was_cut_short_stays_spent(tmp_path):
    def stop(_text: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        enrich(["a"], Script(stop), tmp_path, PLENTY)
    result = enrich(["a"], Script(), tmp_path, replace(PLENTY, token_budget=150))
    assert result.budget_reached
    assert result.spent == Tokens(60, 40)
    result = enrich(["a"], Script(), tmp_path, replace(PLENTY, token_budget=200))
    assert result.reasons == [None]
    assert result.spent == Tokens(70, 45)


def test_attributes_follow_the_beginning_of_a_text_for_embedding():
    assert enriched_text("rose soap", GOOD, PROMPT.schema) == (
        "rose soap. soap. everyone. A bar of soap"
    )
    assert enriched_text("rose soap", None, PROMPT.schema) == "rose soap"
    long = enriched_text("word " * 300 + "end", GOOD, PROMPT.schema)
    assert long.index("A bar of soap") < 600
    assert long.endswith("word end")
    assert long.count("word") == 300


def test_a_server_that_does_not_say_what_it_took_is_charged_the_bound(tmp_path):
    def silent(request: Request) -> Reply:
        return Reply({**good(request).body, "usage": None})

    result, _ = run(silent, ["a"], tmp_path)
    assert result.spent.total > 1000
    assert result.attributes[0] is not None


def test_a_server_that_goes_away_stops_the_run_after_some_misses(tmp_path):
    def chat(request: Request) -> Reply:
        return good(request) if int(text_in(request).split()[1]) < 4 else Reply({}, 503)

    texts = [f"item {i:02d}" for i in range(40)]
    with pytest.raises(EndpointError, match="status 503"):
        run(chat, texts, tmp_path, concurrency=1)
    result, requests = run(good, texts, tmp_path)
    assert len(requests) == 36
    # Requests without an answer were not paid for.
    assert result.spent == Tokens(4000, 2000)
