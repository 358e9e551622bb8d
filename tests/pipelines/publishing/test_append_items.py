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


def release(folder: Path, version: str, table: dict[str, Any] | None = None, **source: Any) -> Path:
    scratch = folder / f"scratch-{version}"
    scratch.mkdir()
    encoder = HashEncoder()
    parts = synthetic_parts(scratch, SyntheticSize(content_dim=encoder.dim))
    about = {"text_columns": ["title"], "name": encoder.name, "table": table or {}}
    content = ContentSource(**{"encoder": "hash", **about, **source})
    write_bundle(folder / "bundles", replace(parts, content_source=content), version=version)
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
def test_new_items_are_read_by_the_names_of_the_catalogue(tmp_path, name, text):
    current = release(tmp_path, "v1", TABLE)
    (tmp_path / name).write_text(text)
    append(tmp_path / name, current)
    catalogue = load_bundle(current.resolve()).catalogue
    row = catalogue.row_of("n1")
    assert row is not None
    assert (catalogue.title_of(row), catalogue.categories_of(row)) == ("Red shoe", ["even", "tens"])


def test_items_that_cannot_be_appended_are_refused_by_what_is_wrong(tmp_path):
    path = tmp_path / "new.csv"
    described = EnrichmentSource(settings={}, model="m", prompt_version="1")
    for version, table, source, text, message in (
        ("v1", TABLE, {}, "squ;label\nn1;Red\n", r"has no column 'sku' \(nearest: 'squ'\)"),
        ("v2", TABLE, {}, "sku;label\nn1;Red\n;Blue\n", "row 1: item_id is empty"),
        ("v3", TABLE, {}, "sku;label\nn1;Red\nn1;Blue\n", "names item_id 'n1' more than once"),
        ("v4", TABLE, {}, "sku;label\nitem-3;Red\n", "already, the first is 'item-3'"),
        ("v5", None, {"name": "old"}, "item_id,title\nn1,Red\n", "was encoded by old, but"),
        ("v6", None, {"encoder": "minilm+words"}, "item_id\nn1\n", "an earlier version hashed the"),
        ("v7", None, {"enrichment": described}, "item_id\nn1\n", "described by m .* run"),
    ):
        current = release(tmp_path, version, table, **source)
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            append(path, current)
