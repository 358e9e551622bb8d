"""The generative model as a source: a beam over the semantic IDs of what a query may be shown."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.evaluation.ranking import list_ranks
from recsys.models.generative.config import GenerativeInputs
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_tower import ItemCatalogue
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import Found
from recsys.retrieval.beam_search import BeamSearch, check_scores
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie


class GeneratedSource:
    """Lists what a beam search finds; targets beyond the list have no rank."""

    def __init__(self, model: GenerativeModel, codes: ItemCodes, beam_width: int) -> None:
        device = next(model.parameters()).device
        trie = Trie.of_items(codes).to(device)
        self._model, self._trie = model, trie
        self._search = BeamSearch(
            model.decode_step, trie, beam_width=beam_width, semantic_ids_version=codes.version
        )

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, targets: Jagged, k: int) -> Found:
        restriction = self._trie.restrict_rows(allowed)
        lists = check_scores(self._search.lists(self._model.context(queries), k, restriction))
        return Found(lists, list_ranks(lists.item_rows, targets).values)


def generative_inputs(
    prepared: Prepared, codes: ItemCodes, vector_dim: int = 0
) -> GenerativeInputs:
    """Say how much there is of what the model reads.

    Args:
        vector_dim: Width of the item vectors that another model made.
    """
    sizes = prepared.sizes()
    return GenerativeInputs(
        num_item_rows=sizes.num_item_rows,
        level_sizes=codes.level_sizes,
        semantic_ids=codes.version,
        content_dim=sizes.content_dim,
        num_categories=sizes.num_categories,
        vector_dim=vector_dim,
    )


def codes_of(prepared: Prepared) -> ItemCodes:
    """Return the semantic IDs that a generative model needs.

    Raises:
        ValueError: The arrays have none.
    """
    if prepared.codes is None:
        raise ValueError(
            f"the arrays of {prepared.name} have no semantic IDs, so there is nothing to generate; "
            "prepare them with content and semantic_ids.method, or leave the row out"
        )
    return prepared.codes


def grown_model(
    model: GenerativeModel, folder: Path, catalogue: ItemCatalogue, codes: ItemCodes
) -> GenerativeModel:
    """Load the model over a catalogue and IDs that have grown since it was trained."""
    model.save(folder)
    return GenerativeModel.load(folder, catalogue, codes.codes, semantic_ids=codes.version)
