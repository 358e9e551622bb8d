"""SmolLM2 for real, read once: enrichment offline, and behind a chat endpoint on a real socket."""

from functools import cache

import gguf
import pytest

from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import checked
from recsys.content.config import AttributeConfig, EnrichmentConfig
from recsys.content.enrichment import enrich
from recsys.content.language_model import LocalLanguageModel

pytestmark = pytest.mark.slow
BAG = "cosmetic bag travel bag. Tools & Accessories, Bags & Cases, Cosmetic Bags"
ATTRIBUTES = (
    AttributeConfig(name="summary", type="words", description="What the item is"),
    AttributeConfig(name="kinds", type="choices", values=("bag", "hat"), description="Its kinds"),
)
CONFIG = EnrichmentConfig(
    attributes=ATTRIBUTES, token_budget=10**6, max_reply_tokens=40, max_attempts=1
)


def test_an_item_is_described_offline(tmp_path, monkeypatch):
    """The schema held, words of the item in the answer, and nothing requested twice."""
    # Transformers reads the file three times, and the names of tensors once a module.
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, cache(getattr(gguf, name)))
    smollm2 = LocalLanguageModel(device="cpu")
    result = enrich([BAG], smollm2, tmp_path, CONFIG)
    attributes = result.attributes[0]
    assert attributes is not None, result.reasons
    schema = build_extraction(ATTRIBUTES).schema
    values = checked({name: one.value for name, one in attributes.items()}, schema)
    assert attributes["summary"].provenance.model == smollm2.name
    assert set(values) <= {"summary", "kinds"}
    assert result.spent.total > 100
    again = LocalLanguageModel(device="cpu")
    assert enrich([BAG], again, tmp_path, CONFIG).spent == result.spent
    assert again._model is None, "weights were read though every answer was known"
