"""Stage build_semantic_ids: each item as a short sequence of codes, versioned.

Codes group items of similar content, or (``semantic_ids.source = sequence``) of similar item
vectors of the sequence model. Published IDs stay: a run with the same encoder and settings assigns
IDs to new items only, by their content. If the stage is forced, the quantiser is fitted again and
its codes are matched to the published ones, so that most items keep their ID.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json, to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import CONTENT_FILE, load_catalogue
from pipelines.semantic_ids.store import ID_ROWS, ITEM_IDS, QUANTIZER, REPORT, open_id_store
from pipelines.semantic_ids.versions import Content, NextVersion, next_version
from recsys.fitting.queries import GIVEN
from recsys.models.names import SEQUENCE
from recsys.models.sequence.model import SequenceModel
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.collisions import rows_with_content
from recsys.semantic_ids.quality import quality_report
from serving.bundle.semantic_ids import CONTENT_CODES


def read_content(
    features: Path, embedded: Path, config: RunConfig, trained: Path | None = None
) -> Content:
    """Read what IDs are made from; ``trained`` is the artefact of train_sequence, if it counts."""
    items = pl.read_parquet(features / "items.parquet", columns=["item_row", "item_id"])
    made = read_json(embedded / "content.json")
    settings = config.semantic_ids
    vectors = np.load(embedded / CONTENT_FILE, allow_pickle=False)
    reads_words = (settings.content_columns or vectors.shape[1]) > made["text_dim"]
    return Content(
        item_ids=items.sort("item_row")["item_id"].to_list(),
        vectors=torch.from_numpy(vectors[:, : settings.content_columns].copy()),
        encoder=made["encoder" if reads_words else "text_encoder"],
        behaviour=None if trained is None else read_behaviour(features, embedded, trained),
    )


def read_behaviour(features: Path, embedded: Path, trained: Path) -> Tensor | None:
    """Read the sequence model's item vectors, [N, D]; None where it was not trained."""
    place = trained / GIVEN / SEQUENCE.name
    if not place.exists():
        return None
    model = SequenceModel.load(place, load_catalogue(features, embedded))
    return model.eval().all_item_vectors()


def build_semantic_ids(context: StageContext) -> StageRows:
    """Write the next version of the catalogue's semantic IDs, or why there is none."""
    config, inputs = context.config, context.inputs
    features, embedded = inputs["build_features"], inputs["embed_items"]
    content = read_content(features, embedded, config, inputs.get("train_sequence"))
    store = open_id_store(config)
    num_items = len(content.item_ids)
    made = None
    if config.semantic_ids.method != "none":
        settings, refit = config.semantic_ids, context.forced
        made = next_version(content, store, settings, seed=config.seed, refit=refit)
    if made is None:
        reason = "no item has content" if config.semantic_ids.method != "none" else "switched off"
        (context.output / REPORT).write_text(to_json({"method": "none", "reason": reason}))
        return StageRows(rows_in=num_items, rows_out=0)
    report = write_version(context.output, made, content)
    if config.makes_ids_of_behaviour() or made.how in ("appended", "kept"):
        # Published IDs stay when a text changes, but items are compared by what it says now.
        np.save(context.output / CONTENT_CODES, content_codes(made, content).numpy())
    quality = report["quality"]
    counts = {"new": made.num_new, "collisions_left": quality["collisions_after"]}
    if not config.makes_ids_of_behaviour():
        counts["collisions_resolved"] = quality["collisions_before"]
    return StageRows(rows_in=num_items, rows_out=made.num_with_id, more=counts)


def content_codes(made: NextVersion, content: Content) -> Tensor:
    """Code items with an ID by their content alone, as new ones are, [N, L] int32; -1 without."""
    known = content.is_known() & torch.from_numpy(made.id_rows > 0)
    codes = torch.full((len(known), len(made.quantizer.level_sizes)), NO_CODE, dtype=torch.int32)
    codes[known] = made.quantizer.encode(content.vectors[known].float()).cpu()
    return codes


def write_version(directory: Path, made: NextVersion, content: Content) -> dict[str, Any]:
    """Write the artefact's files; return what the report says."""
    made.ids.save(directory)
    made.quantizer.save(directory / QUANTIZER)
    np.save(directory / ID_ROWS, made.id_rows)
    (directory / ITEM_IDS).write_text(to_json(list(made.item_ids)), encoding="utf-8")
    report = {
        "method": made.origin["settings"]["method"],
        "source": made.origin["settings"]["source"],
        "how": made.how,
        "version": made.ids.version,
        "parent": made.ids.parent,
        "origin": dict(made.origin),
        "num_items": len(content.item_ids),
        "num_with_id": made.num_with_id,
        "num_without_content": int((~rows_with_content(content.vectors[1:])).sum()),
        "num_new": made.num_new,
        "kept": None if made.kept is None else asdict(made.kept),
        "quality": _quality(made, content),
    }
    (directory / REPORT).write_text(to_json(report), encoding="utf-8")
    return report


def _quality(made: NextVersion, content: Content) -> dict[str, Any]:
    """Measure the IDs of the catalogue's items that have content."""
    rows = torch.from_numpy(made.id_rows)
    measured = content.is_known() & (rows > 0)
    vectors = torch.zeros(made.ids.num_item_rows, content.vectors.shape[1])
    vectors[rows[measured]] = content.vectors[measured].float()
    report = quality_report(made.quantizer, vectors, made.ids, item_rows=rows[measured])
    return asdict(report)


def is_newest(context: StageContext) -> bool:
    """Check whether the artefact's IDs are still published, or next to be.

    Items that were appended to them meanwhile (recsys release append) change none; IDs that were
    fitted again elsewhere do.
    """
    report = read_json(context.output / REPORT)
    store = open_id_store(context.config)
    if "version" not in report or store.current() is None:
        return True
    if store.has(report["version"]):
        return store.leads_from(report["version"])
    return bool(store.current() == report["parent"])
