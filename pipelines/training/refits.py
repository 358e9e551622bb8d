"""Refits: a model trained again on other events for as many passes as validation chose."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file

from pipelines.training.fitters import ModelFitter
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.training import Refit


def was_trained(folder: Path) -> bool:
    """Say whether a training stage wrote a model into an order's folder, or was off."""
    return (folder / "training.json").exists()


def refit_of(
    folder: Path, fitter: ModelFitter, inputs: ModelInputs, *, may_continue: bool = False
) -> Refit:
    """Read the number of steps that validation chose.

    Args:
        folder: Of the training stage, of one order of tied times.
        fitter: Of the model.
        inputs: What is fitted on; its train split is what the steps were chosen for.
        may_continue: Whether the trained weights are continued where the settings say so; never
            where they have seen events that the refit must not.
    """
    result = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    num_examples = fitter.num_examples(inputs.sequences, "train")
    weights = None
    if may_continue and fitter.training.refit_epochs is not None:
        whole = folder / "ensemble"
        model = whole if fitter.name == "sequence" and whole.exists() else folder / fitter.name
        weights = load_file(model / f"{fitter.name}.safetensors")
    return Refit(
        best_step=result["best_step"],
        num_examples=num_examples,
        schedule_steps=result["schedule_steps"],
        weights=weights,
    )
