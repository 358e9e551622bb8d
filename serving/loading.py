"""Load a bundle as a server does: readable, whole, and tried with a request before it serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from serving.bundle.load import Bundle
from serving.bundle.published import permitted
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions


def load_and_try(
    target: Path, options: ServingOptions, loaded: Bundle | None = None
) -> Recommender:
    """Load a bundle, index its titles and answer one request, so that real ones find all warm.

    Args:
        loaded: A bundle in memory, which a delta of the same release shares.

    Raises:
        ValueError: If it is not a bundle, anything in it is not as it was released, or a file may
            not be read.
    """
    with permitted():
        # A folder that may not be listed would look empty, its files missing.
        target = target.resolve()
        for _ in os.walk(target, onerror=_raise):
            pass
        recommender = Recommender.load(target, options, loaded=loaded)
    # Here once, not in each forked worker inside its first search.
    _ = recommender.search
    bundle = recommender.bundle
    owner = bundle.users.user_ids[1] if bundle.users.num_user_rows > 1 else None
    recommender.answer(Request(user_id=owner, k=1))
    return recommender


def describe(recommender: Recommender) -> dict[str, Any]:
    """Say what is served, as ``/readyz`` does."""
    bundle = recommender.bundle
    return {
        "bundle": bundle.version,
        "digest": bundle.digest,
        "profile": recommender.profile,
        "num_items": bundle.num_item_rows - 1,
        "semantic_ids": bundle.semantic_ids.version if bundle.semantic_ids else None,
        "adapters": dict(recommender.adapters.versions),
        "adapters_refused": dict(recommender.adapters.refused),
    }


def _raise(error: OSError) -> None:
    raise error
