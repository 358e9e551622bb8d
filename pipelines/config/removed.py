"""Keys of a run's configuration that were renamed or removed, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

RENAMED_KEYS: Mapping[str, str] = {
    "training.device": "device",
    "sequence_training.device": "device",
    "generative_training.device": "device",
    "ranker_training.device": "device",
    "adapter.device": "device",
    "enrichment.device": "device",
    "training": "two_tower_training",
}
"""Old and new name of a key or a section, in the order in which they are renamed."""
REMOVED_KEYS: Mapping[str, str] = {
    "sequence.block = gated_delta": "use sparse, which is better on long and short histories",
    "sequence.member_blocks = gated_delta": "use attention, hstu or sparse",
    "generative_training.alignment": "leave it out: the blend gained nothing by rewards",
    "generative_training.value_column": "leave it out; rules of a surface raise items of a value",
    "generative.first_code_limit": "set diversity of a surface, which spreads what is shown",
    "generative.memory_orders": "leave it out: the memory of n-grams lost to no memory",
    "tracking.upload_bundles": "set tracking.bundles to the folder or URL that bundles go to",
    "tracking.keep_bundles": "remove old bundles from the folder tracking.bundles",
    "tracking.fetch_seconds": "leave it out: a fetch that was cut off is continued",
    "tracking.live_seconds": "leave it out: a run is sent when it is done",
    "generative.memory_rows": "leave it out: the memory of n-grams lost to no memory",
}
"""What to do instead, by key; a single value that was removed is listed as ``key = value``."""


def removal(key: str, value: object = None) -> str | None:
    """Return the complaint about a renamed or removed key or a removed value of one, or None."""
    key = re.sub(r"\[\d+\]", "", key)
    if key in RENAMED_KEYS:
        new = f"{key!r} was renamed; write {RENAMED_KEYS[key]!r}"
        return f"{new} (recsys config upgrade FILE rewrites a whole file)"
    for removed in (key, f"{key} = {value}"):
        if removed in REMOVED_KEYS:
            return f"{removed!r} was removed; {REMOVED_KEYS[removed]}"
    return None
