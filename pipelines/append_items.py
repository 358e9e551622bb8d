"""New catalogue rows as a delta of a released bundle: no training, vectors from their content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.config import ContentConfig
from pipelines.config_file import validate
from pipelines.content_models import cache_dir, make_encoder
from pipelines.enrich_items import text_of
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import Encoder
from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle import Bundle, load_bundle
from serving.delta import NewItem, write_delta
from serving.manifest import publish, read_manifest

CATEGORY_SEPARATOR = "|"


def read_items(path: Path) -> pl.DataFrame:
    """Read new items: a column item_id, and what else is known.

    Raises:
        ValueError: Names the file, the column or the row at fault.
    """
    readers = {
        ".csv": lambda: pl.read_csv(path, infer_schema=False),
        ".parquet": lambda: pl.read_parquet(path),
        ".jsonl": lambda: pl.read_ndjson(path),
    }
    if path.suffix not in readers:
        raise ValueError(f"{path} must end in {', '.join(readers)}")
    if not path.is_file():
        raise ValueError(f"there is no file {path.absolute()}")
    try:
        items = readers[path.suffix]()
    # A broken Parquet file makes Polars panic, which is not an Exception.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if "item_id" not in items.columns:
        raise ValueError(
            f"{path} has no column item_id; its columns are {', '.join(items.columns)}"
        )
    items = items.with_columns(pl.col("item_id").cast(pl.String))
    if items["item_id"].null_count() or (items["item_id"] == "").any():
        row = (items["item_id"].is_null() | (items["item_id"] == "")).arg_max()
        raise ValueError(f"{path}, row {row}: item_id is empty; give every item an id")
    if items["item_id"].is_duplicated().any():
        twice = items.filter(pl.col("item_id").is_duplicated())["item_id"][0]
        raise ValueError(f"{path} names item_id {twice!r} more than once; keep one row of it")
    if items.schema.get("categories") == pl.String:
        items = items.with_columns(pl.col("categories").str.split(CATEGORY_SEPARATOR))
    return items


def content_config(bundle: Bundle, directory: Path) -> ContentConfig:
    """Tell how the text of the bundle's items became vectors.

    Raises:
        ValueError: If the bundle does not say, or has no two-tower to place new items with.
    """
    if bundle.retriever is None:
        raise ValueError(f"{directory} has no two-tower, so new items have no vectors in it")
    made = bundle.manifest.content
    if made is None:
        raise ValueError(
            f"{directory} does not say which encoder made its content embeddings; release it again"
        )
    fields = made.settings or {"encoder": made.encoder, "text_columns": made.text_columns}
    return validate(ContentConfig, fields, f"{directory}/manifest.json content")


def check_encoder(encoder: Encoder, bundle: Bundle, directory: Path) -> None:
    """Refuse an encoder whose vectors cannot stand beside the bundle's.

    Raises:
        ValueError: If the model was exchanged since the release.
    """
    made = bundle.manifest.content
    assert made is not None
    if made.name and made.name != encoder.name:
        raise ValueError(
            f"{directory} was encoded by {made.name}, but {made.encoder} is now {encoder.name}; "
            "put the old model back or run the pipeline again"
        )


def append(path: Path, bundle_path: Path, *, publish_it: bool) -> tuple[Path, int]:
    """Write and publish a delta with the items of a file.

    Returns:
        The delta's directory and its number of items.

    Raises:
        ValueError: If the file is at fault, an item is known already, or the bundle has no
            two-tower to place new items with.
    """
    items = read_items(path)
    directory = bundle_path.resolve()
    bundle = load_bundle(directory)
    config = content_config(bundle, directory)
    if known := [one for one in items["item_id"] if bundle.catalogue.row_of(one)]:
        raise ValueError(
            f"{path}: {len(known)} items are in the bundle already, the first is {known[0]!r}; "
            "leave them out, the next run updates them"
        )
    rows = list(items.iter_rows(named=True))
    encoder = make_encoder(config)
    content = np.zeros((len(rows), 0), np.float32)
    if encoder is not None:
        check_encoder(encoder, bundle, directory)
        texts = [text_of(row, config) for row in rows]
        content = encode_cached(texts, encoder, cache_dir("embeddings"))
    new = [
        NewItem(
            item_id=row["item_id"],
            display_text=str(row.get("title") or row.get("description") or row["item_id"]),
            categories=[name for name in row.get("categories") or [] if name],
        )
        for row in rows
    ]
    vectors = item_vectors(bundle, new, content)
    manifest, _ = read_manifest(directory)
    delta = write_delta(
        directory.parent, manifest.version, new, content=content, item_vectors=vectors
    )
    if publish_it:
        publish(directory.parent, read_manifest(delta)[0].version)
    return delta, len(new)


def item_vectors(
    bundle: Bundle, items: list[NewItem], content: np.ndarray[tuple[int, int], np.dtype[np.float32]]
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Encode items that no model has met, by content and the categories it knows, [R, D]."""
    assert bundle.retriever is not None
    names = bundle.catalogue.category_names
    trained = bundle.retriever.model.inputs.num_categories
    found = [[names.row_of(name) or 0 for name in item.categories] for item in items]
    categories = Jagged.from_lists([[row for row in rows if 0 < row < trained] for rows in found])
    batch = JaggedBatch(
        {
            "item": Jagged.one_each(torch.zeros(len(items), dtype=torch.int64)),
            "item.categories": categories,
        }
    )
    with torch.inference_mode():
        vectors = bundle.retriever.model.item_vectors(batch, torch.from_numpy(content))
    return vectors.numpy()
