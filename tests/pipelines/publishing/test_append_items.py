"""Items that are appended to a bundle from files under any names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.publishing.append_items import append
from recsys.content.encoder import HashEncoder
from serving.bundle.load import load_bundle
from serving.bundle.manifest import ContentSource, EnrichmentSource, publish
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

TABLE = {"columns": {"item_id": "sku", "title": "label", "brand": ""}, "separator": ";"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))


def release(
    folder: Path,
    version: str,
    table: dict[str, Any] | None = None,
    enrichment: EnrichmentSource | None = None,
) -> Path:
    scratch = folder / f"scratch-{version}"
    scratch.mkdir()
    encoder = HashEncoder()
    parts = synthetic_parts(scratch, SyntheticSize(content_dim=encoder.dim))
    source = ContentSource(
        encoder="hash",
        text_columns=["title"],
        name=encoder.name,
        table=table or {},
        enrichment=enrichment,
    )
    write_bundle(folder / "bundles", replace(parts, content_source=source), version=version)
    publish(folder / "bundles", version)
    return folder / "bundles/current"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("new.csv", "sku;label;categories\nn1;Red shoe;even|tens\n"),
        ("new.csv", "item_id;title;categories\nn1;Red shoe;even|tens\n"),
        ("new.tsv", "sku;label;categories\nn1;Red shoe;even|tens\n"),
        ("new.jsonl", '{"sku": "n1", "label": "Red shoe", "categories": ["even", "tens"]}\n'),
    ],
)
def test_new_items_are_read_by_the_names_of_the_catalogue(
    tmp_path: Path, name: str, text: str
) -> None:
    current = release(tmp_path, "v1", TABLE)
    (tmp_path / name).write_text(text)
    append(tmp_path / name, current)
    catalogue = load_bundle(current.resolve()).catalogue
    row = catalogue.row_of("n1")
    assert row is not None
    assert (catalogue.title_of(row), catalogue.categories_of(row)) == ("Red shoe", ["even", "tens"])


def test_a_file_without_the_column_of_ids_is_refused_by_the_catalogues_name(tmp_path: Path) -> None:
    current = release(tmp_path, "v1", TABLE)
    (tmp_path / "new.csv").write_text("squ;label\nn1;Red shoe\n")
    with pytest.raises(ValueError, match=r"has no column 'sku' \(nearest: 'squ'\)"):
        append(tmp_path / "new.csv", current)


def test_items_that_a_language_model_described_need_a_run(tmp_path: Path) -> None:
    enrichment = EnrichmentSource(settings={}, model="describer", prompt_version="1")
    current = release(tmp_path, "v1", enrichment=enrichment)
    (tmp_path / "new.csv").write_text("item_id,title\nroses,Roses\n")
    with pytest.raises(ValueError, match=r"described by describer .* run the pipeline again"):
        append(tmp_path / "new.csv", current)
