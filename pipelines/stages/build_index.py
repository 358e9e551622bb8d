"""Stage build_index: item vectors of the released two-tower, their index, and its recall."""

from __future__ import annotations

import numpy as np
import torch

from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import Rows, read_inputs
from recsys.fitting.queries import ModelInputs
from recsys.models.names import TWO_TOWER
from recsys.models.two_tower import TwoTower
from recsys.retrieval.faiss_index import build_index as build
from recsys.retrieval.index import tune_effort

RECALL_K = 100
RECALL_QUERIES = 1_000


def build_index(context: StageContext) -> StageRows:
    """Index all items and compare the index with exact search on real users' queries.

    Without a two-tower there is nothing to index.
    """
    config, trained = context.config, context.inputs["refit"] / TWO_TOWER.name
    if not trained.exists():
        (context.output / "recall.json").write_text(to_json({"recall": None}))
        return StageRows(rows_in=0, rows_out=0)
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))
    model = TwoTower.load(trained, inputs.catalogue)
    with torch.no_grad():
        vectors = model.all_item_vectors().contiguous()  # [N, D]
        vectors[0] = 0
        queries = model.query_vectors(
            inputs.queries(sampled_positions(inputs), max_history=config.two_tower.max_history)
        )
    index = build(vectors, config.index)
    k = min(RECALL_K, len(vectors) - 1)
    recall = tune_effort(index, queries, vectors, target=config.release.min_index_recall, k=k)
    np.save(context.output / "item_vectors.npy", vectors.numpy())
    index.save(context.output / "items.faiss")
    summary = {
        "kind": index.kind,
        "effort": index.effort,
        "num_item_rows": index.num_item_rows,
        "dim": index.dim,
        f"recall@{k}": recall,
        "recall": recall,
        "recall_k": k,
        "num_queries": len(queries),
    }
    (context.output / "recall.json").write_text(to_json(summary))
    return StageRows(rows_in=len(vectors) - 1, rows_out=index.num_item_rows - 1)


def sampled_positions(inputs: ModelInputs) -> Rows:
    """Take the last event of evenly chosen users as the labels of queries."""
    offsets = np.asarray(inputs.sequences.offsets)
    last = offsets[1:][np.diff(offsets) > 0] - 1
    chosen = np.unique(np.linspace(0, len(last) - 1, min(RECALL_QUERIES, len(last))).astype(int))
    positions: Rows = last[chosen]
    return positions
