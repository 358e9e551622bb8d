"""A ranker's candidates as training builds them, against those of the request.

The two forms add in another order (recsys/retrieval/blend/candidate_features_one.py), so their
features agree to rounding and not to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from pipelines.parity.compare import Found
from recsys.data.top_k import TopK
from recsys.retrieval.blend.candidate_features import feature_names
from serving.bundle.load import Bundle
from serving.recommend import Made

PATH = "recsys.retrieval.blend.candidate_features.CandidateBuilder.candidates"
TOLERANCE = 1e-3
"""Of a feature's size, at least of 1."""
ILL_CONDITIONED = "linear.z_score"
"""It divides by the spread of scores that may be equal but for rounding; the scores themselves,
``linear.history``, are compared."""


def candidate_differences(bundle: Bundle, made: Made) -> Iterator[Found]:
    """Build the candidates of a list by the batched form, and name the features that differ."""
    scored = None if made.ranked is None else made.ranked.scored
    if scored is None or bundle.ranker is None:
        return
    builder = bundle.ranker.builder
    length = made.query.surface.num_candidates
    lists = {
        name: TopK(
            *(torch.from_numpy(part[:length].copy())[None] for part in made.candidates[name])
        )
        for name in builder.blend.sources
        if name in made.candidates
    }
    with torch.inference_mode():
        history = made.query.features["history"]
        batch = builder.candidates(lists, history, bundle.item_counts)
    rows = batch.item_rows[0]
    number = int((rows > 0).sum())
    if rows[:number].tolist() != scored.item_rows.tolist():
        yield Found("candidates of the ranker, batch", PATH)
        return
    one, many = scored.features.numpy(), batch.features[0, :number].numpy()
    apart = np.abs(one - many)
    beyond = (apart > TOLERANCE * np.maximum(1, np.abs(many))).any(0)
    names = feature_names(builder.blend.sources)
    beyond[names.index(ILL_CONDITIONED)] = False
    for column in np.flatnonzero(beyond).tolist():
        yield Found(f"ranker's feature {names[column]}, batch", PATH, float(apart[:, column].max()))
