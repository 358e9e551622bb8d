"""Merge the lists of several sources by a learned blend.

Each query's weights depend on the length of its history, each item's on the number of events that
the sources were fitted on.

Axes: B queries, N item rows, k list length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.retrieval.blend.config import LearnedBlendConfig
from recsys.retrieval.blend.fusion import Blended
from recsys.retrieval.blend.learned import LearnedBlend


def fitted_blend(
    lists: Mapping[str, TopK],
    targets: Jagged,
    history_lengths: Tensor,
    item_counts: Tensor,
    config: LearnedBlendConfig | None = None,
    demand: Tensor | None = None,
) -> LearnedBlend:
    """Learn weights from lists of queries whose next items are known.

    Args:
        history_lengths: Of what the sources read, ``queries["history"].lengths()``, [B].
        item_counts: Events of each item that the sources were fitted on, [N].
        demand: Of items by the same events, [N, D]; None reads none.
    """
    return LearnedBlend.fit(
        lists,
        targets,
        config,
        history_lengths=history_lengths,
        item_values=item_counts.double(),
        demand=demand,
    )


def blended_lists(
    blend: LearnedBlend,
    lists: Mapping[str, TopK],
    history_lengths: Tensor,
    item_counts: Tensor,
    k: int,
) -> Blended:
    """Merge lists by learned weights; arguments as of ``fitted_blend``.

    Items that were appended after the sources were fitted count 0 events; such items have the
    odds that the blend's settings give new ones.
    """
    odds = blend.config.new_item_odds
    return blend.blend(
        lists,
        k,
        history_lengths=history_lengths,
        item_values=item_counts.double(),
        log_odds=None if odds == 1 else (item_counts == 0) * math.log(odds),
    )
