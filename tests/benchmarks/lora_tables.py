"""Rows of the table of ``benchmark_lora_quality.py``: means over seeds, by domain and over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from results_file import Row

METRIC = "ndcg@10"
NEW = "new domain"
NEW_SECONDS = 300.0
"""That a useful adapter for 100 users may take: "minutes"."""

Seeds = list[dict[str, dict[str, Any]]]


def rows_of(seeds: Seeds) -> list[Row]:
    """Lay means over seeds out; runs may hold different parts."""
    whole = [seed for seed in seeds if any(not name.startswith(NEW) for name in seed)]
    fresh = [seed for seed in seeds if any(name.startswith(NEW) for name in seed)]
    return (compared_rows(whole) if whole else []) + (new_rows(fresh) if fresh else [])


def compared_rows(seeds: Seeds) -> list[Row]:
    names = [name for name in seeds[0] if not name.startswith(NEW)]
    kinds = [kind for kind in seeds[0][names[0]] if not kind.startswith(("share ", "seconds "))]
    rows = [
        Row(name=f"{name}: {kind}", value=mean_of(seeds, kind, [name]), unit=METRIC)
        for name in names
        for kind in kinds
    ]
    rows += [
        Row(name=f"mean: {kind}", value=mean_of(seeds, kind, names), unit=METRIC) for kind in kinds
    ]
    for kind in kinds:
        if kind.startswith("lora"):
            rows += goals_of(seeds, kind, names)
    return rows


def mean_of(seeds: Seeds, kind: str, domains: list[str]) -> float:
    return float(np.mean([seed[one][kind] for seed in seeds for one in domains]))


def goals_of(seeds: Seeds, kind: str, names: list[str]) -> list[Row]:
    value, full, shared, own = (
        mean_of(seeds, one, names) for one in (kind, "full", "shared", "own")
    )
    gain = (value - shared) / (full - shared) if full > shared else float("nan")
    each = [
        mean_of([seed], kind, names)
        - max(mean_of([seed], "shared", names), mean_of([seed], "own", names))
        for seed in seeds
    ]
    share = mean_of(seeds, f"share {kind}", names)
    return [
        Row(
            name=f"{kind}: share of full fine-tuning's gain",
            value=gain,
            unit="",
            goal=">= 0.9",
            met=gain >= 0.9,
        ),
        Row(
            name=f"{kind}: above the better of shared and own",
            value=value - max(shared, own),
            unit=METRIC,
            goal="> 0",
            met=value > max(shared, own),
        ),
        Row(name=f"{kind}: the same, of the worst seed", value=min(each), unit=METRIC),
        Row(
            name=f"{kind}: parameters, of the base's",
            value=share,
            unit="",
            goal="<= 0.05",
            met=share <= 0.05,
        ),
    ]


def new_rows(seeds: Seeds) -> list[Row]:
    rows = []
    for name in (one for one in seeds[0] if one.startswith(NEW)):
        base, adapter, seconds = (
            mean_of(seeds, kind, [name]) for kind in ("base", "adapter", "seconds")
        )
        rows += [
            Row(name=f"{name}, 100 users: base", value=base, unit=METRIC),
            Row(
                name=f"{name}, 100 users: adapter",
                value=adapter,
                unit=METRIC,
                peer="base",
                ratio=adapter / base if base else None,
                goal="above the base",
                met=adapter > base,
            ),
            Row(
                name=f"{name}, 100 users: training",
                value=seconds,
                unit="s",
                goal=f"<= {NEW_SECONDS:.0f} s",
                met=seconds <= NEW_SECONDS,
            ),
        ]
    return rows
