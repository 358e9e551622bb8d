"""Inputs of models from the features and content artefacts, as tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config.run import RunConfig
from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut as HeldOut
from recsys.data.dataset import Sequences
from recsys.data.dataset import ragged as ragged
from recsys.fitting.queries import GIVEN, ModelInputs, RetrievalSettings
from recsys.models.item_tower import FeatureSizes, ItemCatalogue

Rows = NDArray[np.int64]
CONTENT_FILE = "content.npy"
WORDS_FILE = "words.safetensors"


def read_inputs(features: Path, content: Path | None) -> ModelInputs:
    """Read the artefacts of build_features and, if there is one, embed_items."""
    described = json.loads((features / "features.json").read_text(encoding="utf-8"))
    catalogue = load_catalogue(features, content)
    user_features = {
        feature["name"]: load_rows(features / "user_features" / f"{feature['name']}.npy")
        for feature in described["user_features"]
    }
    sizes = FeatureSizes(
        num_item_rows=described["num_item_rows"],
        content_dim=catalogue.content.shape[1],
        num_categories=described["num_categories"],
        user_features={
            feature["name"]: feature["cardinality"] for feature in described["user_features"]
        },
        context_features={
            feature["name"]: feature["cardinality"] for feature in described["context_features"]
        },
        event_types=tuple(described.get("event_types", ())),
    )
    return ModelInputs(
        sequences=Sequences.load(features / "sequences" / GIVEN),
        catalogue=catalogue,
        sizes=sizes,
        user_features=user_features,
    )


def split_kind(features: Path) -> str:
    """Read how build_features held events out: ``leave_one_out`` or ``global_time``."""
    report: dict[str, str] = json.loads((features / "report.json").read_text(encoding="utf-8"))
    return report["split_kind"]


def retrieval_settings(config: RunConfig) -> RetrievalSettings:
    """Request lists as the surface ``home`` does, so that measured lists are the served ones."""
    return RetrievalSettings(exclude_history=config.evaluation.exclude_history)


def load_rows(path: Path) -> Rows:
    """Memory-map an array of rows."""
    rows: Rows = np.load(path, mmap_mode="r", allow_pickle=False)
    return rows


def load_catalogue(features: Path, content: Path | None) -> ItemCatalogue:
    """Read categories and content embeddings of every item row."""
    values = torch.from_numpy(np.array(load_rows(features / "item_categories" / "values.npy")))
    offsets = torch.from_numpy(np.array(load_rows(features / "item_categories" / "offsets.npy")))
    categories = Jagged(values, offsets)
    if content is None:
        return ItemCatalogue(torch.empty(categories.batch_size, 0), categories)
    vectors = np.load(content / CONTENT_FILE, allow_pickle=False)
    return ItemCatalogue(torch.from_numpy(vectors), categories)
