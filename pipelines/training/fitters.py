"""Models of the catalogue with a run's settings, trained or trained again.

A refit takes as many passes as validation chose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from pipelines.config.run import RunConfig, TrainingConfig
from recsys.data.dataset import FitSplit, Sequences
from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import Data, Fitted, ModelSpec, Refit, Start
from recsys.models.names import MODELS, ModelName


def is_on(names: ModelName, config: RunConfig) -> bool:
    """Return whether a run fits a model."""
    section = config.models.get(names.name)
    if section is None:
        section = getattr(config, names.training or names.section)
    wanted: bool = getattr(section, "enabled", True)
    return wanted and not (names.repeats and config.evaluation.exclude_history)


def pick_settings(names: ModelName, config: RunConfig) -> Any:
    """Return a model's settings; lists may repeat the history only if labels may."""
    settings = getattr(config, names.section)
    if config.evaluation.exclude_history or not hasattr(settings, "leave_out_history"):
        return settings
    return replace(settings, leave_out_history=False)


def own_settings(spec: ModelSpec, config: RunConfig) -> Any:
    """Return a model's settings, those of another package's model as its own class."""
    outside = config.models.get(spec.name)
    if outside is None:
        return pick_settings(spec.names, config)
    try:
        return spec.config(**outside.settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"models.{spec.name}.settings: {error}") from error


@dataclass(frozen=True)
class ModelFitter:
    """A model with a training, by a run's settings."""

    spec: ModelSpec
    settings: Any
    training: TrainingConfig

    @classmethod
    def of(cls, spec: ModelSpec, config: RunConfig) -> ModelFitter:
        return cls(spec, pick_settings(spec.names, config), getattr(config, spec.names.training))

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def title(self) -> str:
        return self.name.replace("_", "-")

    def num_examples(self, sequences: Sequences, split: FitSplit) -> int:
        assert self.spec.num_examples is not None
        return self.spec.num_examples(self.settings, sequences, split)

    def fit(self, data: Data, until: FitSplit, start: Start) -> Fitted[Any]:
        """Train the model: fresh, for as many steps as validation chose, or on from weights."""
        fitted = self.spec.fit(self.settings, data, until, start)
        assert fitted is not None
        return fitted


def whole_model(folder: Path, spec: ModelSpec) -> Path:
    """Return the file of all that was trained of a model: that of its ensemble if it has one."""
    wholes = [folder / one.name for one in MODELS if one.variant_of == spec.name]
    model = next((whole for whole in wholes if whole.exists()), folder / spec.name)
    return model / f"{spec.name}.safetensors"


def was_trained(folder: Path) -> bool:
    """Return whether a training stage wrote a model into an order's folder, or was off."""
    return (folder / "training.json").exists()


def read_refit(
    folder: Path, fitter: ModelFitter, inputs: ModelInputs, *, may_continue: bool = False
) -> Refit:
    """Read the number of steps that validation chose.

    Args:
        may_continue: Whether the trained weights are continued where the settings say so; never
            where they have seen events that the refit must not.
    """
    result = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    num_examples = fitter.num_examples(inputs.sequences, "train")
    weights = None
    if may_continue and fitter.training.refit_epochs is not None:
        weights = load_file(whole_model(folder, fitter.spec))
    return Refit(
        best_step=result["best_step"],
        num_examples=num_examples,
        schedule_steps=result["schedule_steps"],
        weights=weights,
    )
