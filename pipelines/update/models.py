"""Trained models of an increment: the served ones, continued on new events.

Axes: U user rows.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import RELEASED
from pipelines.inputs.tensors import read_inputs
from pipelines.publishing.released import HELD_OUT, Released, released_folder
from pipelines.training.fitters import ModelFitter, whole_model
from pipelines.training.train import fit, write_training
from recsys.fitting.queries import GIVEN, ModelInputs, NewEvents
from recsys.fitting.sequence import SEQUENCE
from recsys.fitting.spec import Data, ModelSpec, Refit
from recsys.fitting.two_tower import TWO_TOWER
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first


def continued_run(context: StageContext) -> Path:
    """Find the run whose trained weights are continued: the served one, or its last full run."""
    folder = context.inputs[RELEASED]
    base = Released.load(folder)
    if context.config.backtest.continue_from == "last" or base.full_version == base.version:
        return folder
    full = released_folder(context.config.workspace, base.full_version)
    return folder if Released.read(full) is None else full


def new_events(context: StageContext, inputs: ModelInputs) -> NewEvents:
    """Return the events that continued weights have not seen: newer or held-out ones."""
    folder = continued_run(context)
    base = Released.load(folder)
    sequences, config = inputs.sequences, context.config
    assert sequences.times is not None
    times, offsets = np.asarray(sequences.times), np.asarray(sequences.offsets)
    since = np.full(len(offsets) - 1, base.new_since(config.workspace), np.int64)  # [U]
    if base.held_out_since is not None:
        held_out = np.load(folder / HELD_OUT, allow_pickle=False)
        since[held_out] = np.minimum(since[held_out], base.held_out_since)
    owners = np.repeat(np.arange(len(since)), np.diff(offsets))
    old = np.concatenate([[0], np.cumsum(times < since[owners])])
    starts = offsets[:-1] + old[offsets[1:]] - old[offsets[:-1]]
    new = NewEvents(starts=starts, seed=config.seed + int(since.max()))
    return replace(new, starts=offsets[1:], replay_share=0.0) if config.updates.counts_only else new


def read_model_inputs(context: StageContext) -> ModelInputs:
    """Read the events and the catalogue as tensors."""
    return read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))


def continue_model(context: StageContext, spec: ModelSpec) -> StageRows:
    """Continue a served model on new events, and write it as its training stage does."""
    folder = continued_run(context)
    served, config = folder / "refit" / spec.name, context.config
    if not served.exists():
        return StageRows(rows_in=0, rows_out=0)
    settings, whole = config.backtest, whole_model(served.parent, spec)
    fitter = ModelFitter.of(spec, config)
    training = fitter.training.continued(settings.new_passes, settings.new_rate)
    fitter = replace(fitter, training=training)
    if isinstance(fitter.settings, SequenceConfig) and whole.parent == served:
        fitter = replace(fitter, settings=of_first(fitter.settings))
    inputs, weights = read_model_inputs(context), load_file(whole)
    fitted, curve = fit(
        context,
        fitter,
        Data(inputs=inputs),
        "train",
        Refit(best_step=1, num_examples=1, weights=weights),
        name=spec.name,
        note="new events",
        new=new_events(context, inputs),
    )
    write_training(context.output / GIVEN, curve, asdict(fitted.result))
    spec.write(fitted.model.eval(), context.output / GIVEN)
    steps = {"steps": fitted.result.num_steps}
    return StageRows(rows_in=fitted.num_examples, rows_out=0, more=steps)


def train_two_tower(context: StageContext) -> StageRows:
    """Continue the served two-tower on new events."""
    return continue_model(context, TWO_TOWER)


def train_sequence(context: StageContext) -> StageRows:
    """Continue all members of the served sequence model on new events."""
    return continue_model(context, SEQUENCE)
