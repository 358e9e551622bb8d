"""Refits: a model trained again on other events for as many passes as validation chose."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.training.fitters import ModelFitter
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.training import Refit


def was_trained(folder: Path) -> bool:
    """Say whether a training stage wrote a model into an order's folder, or was off."""
    return (folder / "training.json").exists()


def refit_of(folder: Path, fitter: ModelFitter, inputs: ModelInputs) -> Refit:
    """Read the number of steps that validation chose.

    Args:
        folder: Of the training stage, of one order of tied times.
        fitter: Of the model.
        inputs: What is fitted on; its train split is what the steps were chosen for.
    """
    result = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    num_examples = fitter.num_examples(inputs.sequences, "train")
    return Refit(best_step=result["best_step"], num_examples=num_examples)
