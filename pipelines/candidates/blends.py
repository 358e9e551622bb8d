"""What merges the lists of all sources in each profile: the artefact of fit_blend.

<order>/blend_<profile>/       what is served, as weights; also where validation preferred
                               reciprocal rank fusion or one source alone
<order>/folds/<profile>_<i>/   fitted without half i of the validation users, to measure that half
<order>/blends.json            what was tried on validation, what is served and why

Profile ``full`` asks every source, ``fast`` leaves out the generative model's beam and all members
but the first of a sequence model with ``fast_members``. Without either they are one, and only
``fast`` is kept.

Axes: B queries, S sources, k list length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.data.top_k import TopK, no_items
from recsys.retrieval.blend.learned import LearnedBlend, LearnedBlendConfig
from recsys.retrieval.blend.source_features import FEATURES
from recsys.retrieval.blend.source_lists import blended_lists
from serving.bundle.manifest import Profile
from serving.surfaces import FILL, HOME

FAST: Profile = "fast"
FULL: Profile = "full"
BLEND, BLEND_FAST = "blend", "blend_fast"
"""Rows of the metrics."""
SLOW_SOURCES = ("ensemble", "generative")
"""Left out of profile ``fast``."""
FILE = "blends.json"
LEARNED, FUSION = "learned", "reciprocal_rank_fusion"
NUM_FOLDS = 2


def profiles_of(sources: Mapping[str, object]) -> dict[Profile, tuple[str, ...]]:
    """Name the sources of each profile, in their order."""
    fast = tuple(name for name in sources if name not in SLOW_SOURCES)
    every: dict[Profile, tuple[str, ...]] = {FAST: fast, FULL: tuple(sources)}
    return every if len(fast) < len(sources) else {FAST: fast}


def row_names(profiles: Mapping[Profile, object]) -> dict[Profile, str]:
    """Name each profile's row in the metrics: ``blend`` is the fullest there is."""
    return {FAST: BLEND_FAST, FULL: BLEND} if FULL in profiles else {FAST: BLEND}


def fold_of_users(num_user_rows: int, seed: int) -> Tensor:
    """Draw the half of each user row, [num_user_rows]."""
    order = np.random.default_rng([seed, num_user_rows]).permutation(num_user_rows)
    return torch.from_numpy(order % NUM_FOLDS)


def fusion_of(sources: tuple[str, ...]) -> LearnedBlend:
    """Write the surface's reciprocal rank fusion as weights: the same order of items.

    There content speaks only for items that are appended after a release.
    """
    return weighted({name: HOME.weights[name] for name in sources if name != "content"})


def single_of(sources: tuple[str, ...], chosen: str) -> LearnedBlend:
    """Rank by one source; the others fill its list up."""
    return weighted({name: 1.0 if name == chosen else FILL for name in sources})


def weighted(by_source: Mapping[str, float]) -> LearnedBlend:
    """Weigh reciprocal ranks alone."""
    weights = torch.zeros(2, 2, len(by_source), len(FEATURES))
    weights[..., FEATURES.index("reciprocal_rank")] = torch.tensor(list(by_source.values()))
    return LearnedBlend(LearnedBlendConfig(), tuple(by_source), weights, torch.ones(len(by_source)))


@dataclass(frozen=True, kw_only=True)
class ProfileBlend:
    """One profile's weights."""

    served: LearnedBlend
    folds: tuple[LearnedBlend, ...]
    """By half of the validation users: weights that the half had no part in."""

    def lists(
        self,
        lists: Mapping[str, TopK],
        history_lengths: Tensor,
        item_counts: Tensor,
        folds: Tensor | None = None,
    ) -> TopK:
        """Merge lists as they are served, or each query by the weights of its half.

        Args:
            history_lengths: [B].
            item_counts: Events of each item that the sources were fitted on, [N].
            folds: Half of each query's user, [B]; None takes what is served.
        """
        chosen = {name: lists[name] for name in self.served.sources}
        length = sum(top.item_rows.shape[1] for top in chosen.values())
        if folds is None:
            found = blended_lists(self.served, chosen, history_lengths, item_counts, length)
            return TopK(found.scores, found.item_rows)
        merged = no_items(len(folds), length)
        for fold, blend in enumerate(self.folds):
            rows = (folds == fold).nonzero()[:, 0]
            if len(rows):
                part = {name: taken(top, rows) for name, top in chosen.items()}
                found = blended_lists(blend, part, history_lengths[rows], item_counts, length)
                merged.scores[rows], merged.item_rows[rows] = found.scores, found.item_rows
        return merged

    def save(self, directory: Path, profile: Profile) -> None:
        """Write all weights into a tie order's folder."""
        self.served.save(directory / f"blend_{profile}")
        for fold, blend in enumerate(self.folds):
            blend.save(directory / "folds" / f"{profile}_{fold}")

    @classmethod
    def load(cls, directory: Path, profile: Profile) -> ProfileBlend:
        """Read what ``save`` wrote."""
        folds = (directory / "folds" / f"{profile}_{fold}" for fold in range(NUM_FOLDS))
        return cls(
            served=LearnedBlend.load(directory / f"blend_{profile}"),
            folds=tuple(LearnedBlend.load(fold) for fold in folds),
        )


def load_blends(directory: Path) -> dict[Profile, ProfileBlend]:
    """Read the profiles of a tie order's folder, ``fast`` first."""
    found = [name for name in (FAST, FULL) if (directory / f"blend_{name}").exists()]
    return {name: ProfileBlend.load(directory, name) for name in found}


def served_blends(directory: Path) -> dict[Profile, Path]:
    """Name the weights that a bundle carries, by profile; both are one without generation.

    A profile that reciprocal rank fusion serves has none: serving fuses by its surface's weights.
    """
    told = json.loads((directory / FILE).read_text(encoding="utf-8"))["profiles"]
    of_profile: dict[Profile, str] = {FAST: FAST, FULL: FULL if FULL in told else FAST}
    return {
        profile: directory / f"blend_{name}"
        for profile, name in of_profile.items()
        if told[name]["served"] != FUSION
    }


def taken(top: TopK, rows: Tensor) -> TopK:
    """Take some queries' lists."""
    return TopK(top.scores[rows], top.item_rows[rows])


def dense(top: TopK, num_item_rows: int) -> Tensor:
    """Write lists as scores of every item, -inf outside them, [B, N]."""
    scores = torch.full((len(top.scores), num_item_rows), -torch.inf)
    # Holes (-1) go to row 0, which is no item.
    scores.scatter_(1, top.item_rows.clamp(min=0), top.scores)
    scores[:, 0] = -torch.inf
    return scores
