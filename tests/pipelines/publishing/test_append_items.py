"""Items that are appended to a bundle: from files under any names, and from a store for as long."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli import release as release_commands
from pipelines.cli.main import app
from pipelines.inputs import opened_store
from pipelines.publishing import append_items
from pipelines.publishing.append_items import append
from recsys.content.encoder import HashEncoder
from serving.bundle.load import load_bundle
from serving.bundle.manifest import ContentSource, publish
from serving.bundle.write import write_bundle
from serving.online.sqlite_store import SqliteStore
from serving.online.store import ItemState, StoreError
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

TABLE = {"columns": {"item_id": "sku", "title": "label", "brand": ""}, "separator": ";"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))


def release(folder: Path, version: str, table: dict[str, Any] | None = None) -> Path:
    scratch = folder / f"scratch-{version}"
    scratch.mkdir()
    encoder = HashEncoder()
    parts = synthetic_parts(scratch, SyntheticSize(content_dim=encoder.dim))
    source = ContentSource(
        encoder="hash", text_columns=["title"], name=encoder.name, table=table or {}
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
    append(tmp_path / name, current, publish_it=True)
    catalogue = load_bundle(current.resolve()).catalogue
    row = catalogue.row_of("n1")
    assert row is not None
    assert (catalogue.title_of(row), catalogue.categories_of(row)) == ("Red shoe", ["even", "tens"])


def test_a_file_without_the_column_of_ids_is_refused_by_the_catalogues_name(tmp_path: Path) -> None:
    current = release(tmp_path, "v1", TABLE)
    (tmp_path / "new.csv").write_text("squ;label\nn1;Red shoe\n")
    with pytest.raises(ValueError, match=r"has no column 'sku' \(nearest: 'squ'\)"):
        append(tmp_path / "new.csv", current, publish_it=True)


def test_following_goes_on_after_a_release_and_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away, comes back, and another bundle is released while items are encoded."""
    current = release(tmp_path, "v1")
    store = SqliteStore(tmp_path / "online")
    store.change_items({"roses": ItemState(properties={"title": "Roses"})})
    store.close()
    looks, released = iter(range(10)), iter(["v2"])
    open_store, encode = opened_store.open_store, append_items.encode_items

    def seldom_there(*arguments: Any, **options: Any) -> Any:
        match next(looks):
            case 0:
                raise StoreError("timed out")
            case 3:
                raise KeyboardInterrupt
        return open_store(*arguments, **options)

    def slow(*arguments: Any) -> Any:
        for version in released:
            release(tmp_path, version)
        return encode(*arguments)

    monkeypatch.setattr(opened_store, "open_store", seldom_there)
    monkeypatch.setattr(append_items, "encode_items", slow)
    monkeypatch.setattr(release_commands, "FOLLOW_SECONDS", 0.0)
    call = ["release", "append", str(current), f"sqlite:{tmp_path / 'online'}", "--follow"]
    result = CliRunner().invoke(app, call)
    assert current.readlink().name == "bundle-v2+1", result.output
    assert load_bundle(current.resolve()).catalogue.row_of("roses") is not None
    assert next(looks) == 4
