"""SmolLM2 for real, read once: enrichment offline, and behind a chat endpoint on a real socket."""

import pytest

from recsys.content.attributes import checked
from recsys.content.config import EnrichmentConfig
from recsys.content.enrichment import enrich
from recsys.content.enrichment_ledger import Enrichment
from recsys.content.language_model import LocalLanguageModel

pytestmark = pytest.mark.slow
BAG = "cosmetic bag travel bag. Tools & Accessories, Bags & Cases, Cosmetic Bags"
CONFIG = EnrichmentConfig(token_budget=10**6, max_reply_tokens=40, max_attempts=1)


@pytest.fixture(scope="module")
def smollm2() -> LocalLanguageModel:
    return LocalLanguageModel(device="cpu")


@pytest.fixture(scope="module")
def described(smollm2, tmp_path_factory) -> tuple[Enrichment, str]:
    """Enrich one item offline; return the result and the folder of what was paid for."""
    folder = tmp_path_factory.mktemp("offline")
    return enrich([BAG], smollm2, folder, CONFIG), folder


def values_of(result: Enrichment, place: int = 0) -> dict[str, object]:
    attributes = result.attributes[place]
    assert attributes is not None, result.reasons
    return {name: one.value for name, one in attributes.items()}


def test_an_item_is_described_offline(described, smollm2):
    """The schema held, words of the item in the answer, and nothing requested twice."""
    result, folder = described
    values = checked(values_of(result))
    attributes = result.attributes[0]
    assert attributes is not None
    assert attributes["summary"].provenance.model == smollm2.name
    assert "bag" in str(values).lower()
    assert result.spent.total > 1000
    again = LocalLanguageModel(device="cpu")
    assert enrich([BAG], again, folder, CONFIG).spent == result.spent
    assert again._model is None, "weights were read though every answer was known"
