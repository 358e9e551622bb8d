"""Out-of-sample candidates: retrievers refitted without each user's latest train events.

Scores of events that a retriever was fitted on say nothing of its accuracy. Each held-back event is
a labelled query with the history up to it; validation and test stay untouched. Trained retrievers
take ``ranker_training.refit_share`` of the passes that validation chose for them.

Axes: U user rows, P positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pipelines.candidates.load import list_models, scored_up_to
from pipelines.config.trainings import RankerTrainingConfig
from pipelines.engine.stage import StageContext
from pipelines.inputs.tensors import HeldOut
from pipelines.training.baselines import fit_untrained
from pipelines.training.fitters import ModelFitter, read_refit
from pipelines.training.train import fit
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.fitting.catalogue import index_of_model
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.fitting.spec import Data
from recsys.models.sequence.members import of_first
from recsys.retrieval.sources import Source

MIN_EVENTS = 3
"""Train events of a user below which none is held back."""


class HeldBack(NamedTuple):
    """Train events without each user's latest, and queries for those."""

    inputs: ModelInputs
    """With the events that retrievers are refitted on, all of them in train."""
    ends: Rows
    """End of these events of each user, [U]."""
    held_out: HeldOut
    """One query for each held-back event, in the order of events."""


def held_back_ends(sequences: Sequences, config: RankerTrainingConfig) -> Rows:
    """Find where each user's train events end once the latest are held back, [U]."""
    lengths = sequences.train_end - sequences.offsets[:-1]
    held = np.minimum(config.max_held_back, (lengths * config.share_held_back).astype(np.int64))
    held = np.where(lengths >= MIN_EVENTS, np.maximum(held, 1), 0)
    ends: Rows = np.asarray(sequences.train_end - held)
    return ends


def ends_before_moment(sequences: Sequences, share: float) -> Rows:
    """Find where each user's train events end before a moment after which a share of them is, [U].

    Requests after a moment want other weights than each user's latest event.
    """
    starts, times = sequences.offsets[:-1], np.asarray(sequences.times)
    positions = concatenated_ranges(starts, np.asarray(sequences.train_end))
    moment = np.quantile(times[positions], 1.0 - share)
    early = sequences.users_of(positions[times[positions] < moment])
    ends: Rows = np.asarray(starts + np.bincount(early, minlength=len(starts)))
    return ends


def hold_back(
    inputs: ModelInputs, config: RankerTrainingConfig, seed: int, *, by_time: bool = False
) -> HeldBack:
    """Hold back each user's latest train events; sample ``max_queries`` of them as queries.

    Args:
        by_time: Hold back those after a moment instead, as validation does.
    """
    sequences = inputs.sequences
    ends = held_back_ends(sequences, config)
    if by_time and sequences.times is not None:
        ends = ends_before_moment(sequences, config.share_held_back)
    last = np.minimum(sequences.train_end, ends + config.max_held_back)
    positions = sequences.without_negative(concatenated_ranges(ends, np.asarray(last)))
    if len(positions) > config.max_queries:
        rng = np.random.default_rng([seed, len(positions)])
        positions = np.sort(rng.choice(positions, config.max_queries, replace=False))
    before = replace(inputs, sequences=sequences.before(ends))
    return HeldBack(before, ends, HeldOut.at(sequences, positions))


def refitted_sources(
    context: StageContext, held_back: HeldBack, names: tuple[str, ...]
) -> dict[str, Source]:
    """Refit retrievers without the held-back events; a killed training resumes."""
    config = context.config
    # Profile fast, whose candidates are ranked, has only the first member of an ensemble.
    config = replace(config, sequence=of_first(config.sequence))
    chosen = context.inputs["fit_baselines"] / GIVEN
    inputs, up_to = held_back.inputs, scored_up_to(config)
    baselines = fit_untrained(inputs, config, "all", chosen)
    data, found = Data(inputs=inputs, index=index_of_model), dict[str, Source]()
    for spec in list_models(config):
        if spec.name not in names:
            continue
        if spec.names.training:
            model = refitted(context, ModelFitter.of(spec, config), data)
        else:
            model = baselines[spec.name]
        found[spec.name] = spec.ranks_by(model, data, up_to)
    return {name: found[name] for name in names}


def refitted(context: StageContext, fitter: ModelFitter, data: Data) -> Any:
    """Train a model again for the passes that validation chose."""
    trained = context.inputs[fitter.spec.names.stage] / GIVEN
    share = context.config.ranker_training.refit_share
    refit = replace(read_refit(trained, fitter, data.inputs), share=share)
    name = f"{GIVEN}/refitted_{fitter.name}"
    fitted, _ = fit(context, fitter, data, "all", refit, name=name, note="out of sample")
    return fitted.model.to("cpu").eval()
