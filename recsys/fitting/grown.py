"""Trained models over catalogues to which rows were appended since.

Rows are append-only, so a trained table is the first rows of a larger one.

Axes: N item rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import grown_state
from recsys.models.generative.config import GenerativeConfig, GenerativeInputs
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_tower import read_settings
from recsys.models.ranker.config import RankerConfig, read_inputs
from recsys.models.ranker.model import Ranker
from recsys.semantic_ids.codes import NO_CODE, ItemCodes


def grown_generative(
    directory: Path, inputs: ModelInputs, item_codes: ItemCodes, before: ItemCodes
) -> GenerativeModel:
    """Read a trained model over a catalogue to which items were appended since, as it is."""
    config, sizes = read_settings(directory, GenerativeConfig, GenerativeInputs, None)
    sizes.check_version(before.version)
    had_id = before.codes[:, 0] != NO_CODE
    kept = item_codes.codes[: len(had_id)][had_id]
    if not torch.equal(kept, before.codes[had_id]):
        changed = int((kept != before.codes[had_id]).any(dim=1).sum())
        raise ValueError(
            f"the semantic IDs of {changed} items are not those that the generative model was "
            "trained on; train it on them: recsys run"
        )
    now = replace(
        sizes,
        num_item_rows=inputs.sizes.num_item_rows,
        num_categories=inputs.sizes.num_categories,
        semantic_ids=item_codes.version,
    )
    model = GenerativeModel(config, now, item_codes.codes, inputs.catalogue)
    model.load_state_dict(grown_state(model, load_file(directory / GenerativeModel.FILE)))
    return model.eval()


def grown_ranker(directory: Path, inputs: ModelInputs) -> Ranker:
    """Read a trained ranker over a catalogue to which items were appended since, as it is.

    New items count as unseen.
    """
    config, sizes = read_settings(directory, RankerConfig, read_inputs, None)
    now = replace(
        sizes,
        num_item_rows=inputs.sizes.num_item_rows,
        num_categories=inputs.sizes.num_categories,
        user_features=dict(inputs.sizes.user_features),
        context_features=dict(inputs.sizes.context_features),
    )
    unseen = torch.zeros(now.num_item_rows)
    model = Ranker(config, now, inputs.catalogue, unseen)
    model.load_state_dict(grown_state(model, load_file(directory / Ranker.FILE)))
    return model.eval()
