"""The values that are tried next: Optuna's Parzen estimator (Bergstra et al., 2011)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.tuning.space import Space, load_optuna


class Sampler:
    """Proposes values and learns from what they gave; trials may run at a time."""

    def __init__(self, space: Space, seed: int) -> None:
        self._optuna, self._space = load_optuna(), space
        # Running trials count as bad ones, so that two at a time are not the same.
        sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study = self._optuna.create_study(direction="maximize", sampler=sampler)
        self._running: dict[int, Any] = {}

    def learn(self, values: Mapping[str, Any], metric: float | None) -> None:
        """Take over what an earlier call tried; values outside the space say nothing here."""
        try:
            trial = self._optuna.trial.create_trial(
                params=dict(values),
                distributions=dict(self._space),
                value=metric,
                state=self._state(metric),
            )
        except ValueError:
            return
        self._study.add_trial(trial)

    def propose(self, number: int) -> dict[str, Any]:
        """Propose the values of a trial, rounded to what a person would write."""
        trial = self._running[number] = self._study.ask(dict(self._space))
        return {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in trial.params.items()
        }

    def end(self, number: int, metric: float | None) -> None:
        """Report the metric of a proposed trial; None if it failed."""
        self._study.tell(self._running.pop(number), metric, self._state(metric))

    def _state(self, metric: float | None) -> Any:
        states = self._optuna.trial.TrialState
        return states.FAIL if metric is None else states.COMPLETE
