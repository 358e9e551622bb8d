"""The blend of each profile: the artefact of fit_blend.

<order>/blend_<profile>/       the served weights; also where validation preferred
                               reciprocal rank fusion or one source alone
<order>/folds/<profile>_<i>/   fitted without half i of the validation users, to measure that half
<order>/blends.json            trials on validation, the served blend and the reason
<order>/values_<profile>.npy   what the served lists reach for each validation query, with
                               neither visits nor absences
<order>/text_search/           search of items by text

Profile ``full`` queries every source, ``fast`` leaves out the generative model's beam and all
members but the first of a sequence model with ``fast_members``. Without either they are one, and
only ``fast`` is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import retrieval_settings
from recsys.data.dataset import HeldOut, Split
from recsys.fitting.blend import FUSION, LEARNED, ProfileBlend
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.fitting.source_lists import SourceLists, known_demand, lists_by_source
from recsys.models.names import SLOW_MODELS
from recsys.retrieval.blend.demand import VISIT_SECONDS
from recsys.retrieval.sources import Source
from serving.bundle.manifest import Profile

FAST: Profile = "fast"
FULL: Profile = "full"
BLEND, BLEND_FAST, RANKED = "blend", "blend_fast", "ranked"
"""Rows of the metrics."""
FILE = "blends.json"
TEXT_SEARCH = "text_search"
VISITS_OF_A_USER, MAX_VISITS = 4, 4_000
"""Latest events of validation that weights of users' own history are fitted on."""
MIN_VISIT_SHARE = 0.1
"""Share of them that follow an event of the same visit, below which a log has no visits."""


def list_profiles(sources: Mapping[str, object]) -> dict[Profile, tuple[str, ...]]:
    """List the sources of each profile, in their order."""
    fast = tuple(name for name in sources if name not in SLOW_MODELS)
    every: dict[Profile, tuple[str, ...]] = {FAST: fast, FULL: tuple(sources)}
    return every if len(fast) < len(sources) else {FAST: fast}


def row_names(profiles: Mapping[Profile, object]) -> dict[Profile, str]:
    """Return each profile's row in the metrics: ``blend`` is the fullest there is."""
    return {FAST: BLEND_FAST, FULL: BLEND} if FULL in profiles else {FAST: BLEND}


def load_blends(directory: Path) -> dict[Profile, ProfileBlend]:
    """Read the profiles of a tie order's folder, ``fast`` first."""
    found = [name for name in (FAST, FULL) if (directory / f"blend_{name}").exists()]
    return {name: ProfileBlend.load(directory, name) for name in found}


def served_blends(directory: Path) -> dict[Profile, Path]:
    """Locate the weights that a bundle carries, by profile; both are one without generation.

    A profile that reciprocal rank fusion serves has none: serving fuses by its surface's weights.
    """
    profiles = json.loads((directory / FILE).read_text(encoding="utf-8"))["profiles"]
    of_profile: dict[Profile, str] = {FAST: FAST, FULL: FULL if FULL in profiles else FAST}
    return {
        profile: directory / f"blend_{name}"
        for profile, name in of_profile.items()
        if profiles[name]["served"] != FUSION
    }


def describe_new_items(document: Mapping[str, Any]) -> str:
    """Describe the odds that a profile gives items without events, and what they brought."""
    if document["served"] != LEARNED:
        return f"odds 1: {document['served']} serves, not learned weights"
    new, k = document["new_items"], document["metric"].partition("@")[2]
    if "before" not in new:
        return f"odds 1: {'it is set' if new['set'] else 'no target of validation is one'}"
    recalls = (
        f"{part} {before:.4f} to {new['after'][part]:.4f}" for part, before in new["before"].items()
    )
    how = "set" if new["set"] else "fitted on validation" if new["odds"] != 1 else "not kept"
    return f"odds {new['tried']:.3g}, {how}; recall@{k} of {', '.join(recalls)}"


def save_values(directory: Path, name: str, values: Tensor) -> None:
    """Write what a list reaches for each validation query, [U]; NaN without a target."""
    np.save(directory / f"values_{name}.npy", values.numpy(), allow_pickle=False)


def load_values(directory: Path, name: str) -> Tensor | None:
    """Read what ``save_values`` wrote; None without a file."""
    path = directory / f"values_{name}.npy"
    return torch.from_numpy(np.load(path, allow_pickle=False)) if path.exists() else None


def evaluation_queries(inputs: ModelInputs, split: Split, config: RunConfig) -> EvaluationQueries:
    """Query a split as serving would."""
    return EvaluationQueries.of(inputs, split, retrieval_settings(config))


def source_lists(
    sources: Mapping[str, Source],
    inputs: ModelInputs,
    held_out: HeldOut,
    fitted_on: ModelInputs,
    config: RunConfig,
) -> SourceLists:
    """Query every source for held-out events, as serving would."""
    queries = EvaluationQueries(
        inputs=inputs, held_out=held_out, settings=retrieval_settings(config)
    )
    return SourceLists.of_queries(
        lists_by_source(sources, queries),
        queries,
        fitted_on.item_counts("train"),
        config.seed,
        known_demand(fitted_on, "train"),
    )


def validation_lists(
    sources: Mapping[str, Source], inputs: ModelInputs, config: RunConfig
) -> SourceLists:
    """Query every source for (a sample of) the validation users."""
    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(config.blend.max_queries, config.seed)
    return source_lists(sources, inputs, held_out, inputs, config)


def visit_lists(
    sources: Mapping[str, Source], inputs: ModelInputs, config: RunConfig
) -> SourceLists | None:
    """Query them before each user's latest events of validation; None without times or visits."""
    held_out = HeldOut.later_events(inputs.sequences, "validation", VISITS_OF_A_USER)
    held_out = held_out.sample(min(MAX_VISITS, config.blend.max_queries), config.seed)
    times, places = inputs.sequences.times, held_out.positions
    if times is None or not len(places):
        return None
    # Each has an event of its user before it: the first one of validation at least.
    if np.mean(times[places] - times[places - 1] < VISIT_SECONDS) < MIN_VISIT_SHARE:
        return None
    return source_lists(sources, inputs, held_out, inputs, config)
