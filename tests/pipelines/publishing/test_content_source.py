import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.config.content import ContentConfig, EnrichItemsConfig
from pipelines.config.run import DataConfig
from pipelines.publishing.parts import content_source
from serving.bundle.manifest import EnrichmentSource


@pytest.mark.parametrize("described_by", [None, {"model": "tiny@host", "prompt_version": "1-a"}])
def test_bundle_says_how_its_content_was_made(
    tmp_path: Path, described_by: dict[str, str] | None
) -> None:
    document = {"encoder": "hash-1", "described_by": described_by, "columns": [], "images": ""}
    (tmp_path / "content.json").write_text(json.dumps(document))
    config = SimpleNamespace(
        content=ContentConfig(encoder="hash"),
        enrichment=EnrichItemsConfig(model="smollm2", token_budget=7),
        data=DataConfig(item_columns={"item_id": "sku"}, separator=";"),
    )
    context = SimpleNamespace(config=config, inputs={"embed_items": tmp_path})
    source = content_source(context)  # type: ignore[arg-type]
    assert (source.encoder, source.name) == ("hash", "hash-1")
    assert source.settings["encoder"] == "hash"
    table = {"columns": {"item_id": "sku"}, "separator": ";", "list_separator": "|"}
    assert source.table == table
    if described_by is None:
        assert source.enrichment is None
        return
    assert isinstance(source.enrichment, EnrichmentSource)
    assert source.enrichment.settings["token_budget"] == 7
    assert source.enrichment.model == "tiny@host"
