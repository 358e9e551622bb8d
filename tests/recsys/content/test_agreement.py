"""Several answers to one text: what they agree on is kept, and is right more often than one."""

import json
from pathlib import Path

import numpy as np
from scipy.stats import binom

from recsys.content.attribute_schema import agreed
from recsys.content.attributes import Attribute, AttributeSource, Value
from recsys.content.config import AttributeConfig, EnrichmentConfig
from recsys.content.enrichment import enrich
from recsys.content.enrichment_ledger import Enrichment
from recsys.content.prompt import Prompt
from tests.recsys.content.test_enrichment import Script

MADE = AttributeSource("oracle", "own", "now")
KINDS = tuple(f"kind{number}" for number in range(20))
KIND = AttributeConfig(name="kind", type="choice", description="What it is.", values=KINDS)


def answer(**values: Value) -> dict[str, Attribute]:
    return {name: Attribute(value, MADE) for name, value in values.items()}


def test_a_value_is_kept_where_enough_draws_give_it() -> None:
    draws = [answer(kind="Oak"), answer(kind="oak"), answer(kind="ash"), None, answer(kind="oak")]
    assert agreed(draws, 0.6) == {"kind": Attribute("Oak", MADE, 0.6)}
    assert agreed(draws, 0.7) == {}
    assert agreed([None, None], 0.6) == {}


class Oracle(Script):
    """A model that knows each text's kind and, draw by draw by itself, is wrong at a rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.draws = rate, list[tuple[str, int]]()

    def answer(self, prompt: Prompt) -> str:
        self.draws.append((prompt.text, prompt.draw))
        true = int(prompt.text.split()[1]) % 20
        generator = np.random.default_rng([int(prompt.text.split()[1]), prompt.draw])
        wrong = generator.random() < self.rate
        other = generator.choice([one for one in range(20) if one != true])
        return json.dumps({"kind": KINDS[other if wrong else true]})


def described(folder: Path, samples: int, num: int, **more: object) -> tuple[Enrichment, Oracle]:
    config = EnrichmentConfig(
        **{"token_budget": 10**9, "attributes": (KIND,), "samples": samples, **more}  # type: ignore[arg-type]
    )
    oracle = Oracle(0.4)
    return enrich([f"item {at}" for at in range(num)], oracle, folder, config), oracle


def test_five_draws_are_right_as_often_as_the_binomial_says(tmp_path: Path) -> None:
    num = 1_000
    for samples, expected in ((1, 0.6), (5, 1 - binom.cdf(2, 5, 0.6))):
        result, _ = described(tmp_path / str(samples), samples, num)
        found = [one["kind"].value if one else None for one in result.attributes]
        right = np.mean([one == KINDS[at % 20] for at, one in enumerate(found)])
        spread = 4 * np.sqrt(expected * (1 - expected) / num)
        assert abs(right - expected) < spread
        if samples == 5:
            wrong = sum(one not in (None, KINDS[at % 20]) for at, one in enumerate(found))
            assert wrong < 0.02 * num
            missing = result.attributes.index(None)
            assert result.reasons[missing] == "no value that 60% of 5 answers give"
