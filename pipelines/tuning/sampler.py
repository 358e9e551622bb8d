"""Which values are tried next: Optuna's tree-structured Parzen estimator (Bergstra et al., 2011).

The one place that knows Optuna.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pipelines.tuning.space import Setting


class Sampler:
    """Proposes values and learns from what they gave; trials may run at a time."""

    def __init__(self, space: Sequence[Setting], seed: int) -> None:
        """Begin."""
        if find_spec("optuna") is None:
            raise ValueError("recsys tune needs Optuna, which is not installed: pip install optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Running trials count as bad ones, so that two at a time are not the same.
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._optuna, self._space = optuna, space
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._ranges = {setting.key: self._range(setting) for setting in space}
        self._running: dict[int, Any] = {}

    def _range(self, setting: Setting) -> Any:
        ranges = self._optuna.distributions
        if setting.choices:
            return ranges.CategoricalDistribution(setting.choices)
        if setting.is_whole:
            return ranges.IntDistribution(int(setting.low), int(setting.high), log=setting.is_log)
        return ranges.FloatDistribution(setting.low, setting.high, log=setting.is_log)

    def learn(self, values: Mapping[str, Any], metric: float | None) -> None:
        """Take over what an earlier call tried; values outside the space say nothing here."""
        try:
            trial = self._optuna.trial.create_trial(
                params=dict(values), distributions=self._ranges, **self._outcome(metric)
            )
        except ValueError:
            return
        self._study.add_trial(trial)

    def propose(self, number: int) -> dict[str, Any]:
        """Propose the values of a trial."""
        trial = self._study.ask(self._ranges)
        self._running[number] = trial
        return {key: rounded(value) for key, value in trial.params.items()}

    def end(self, number: int, metric: float | None) -> None:
        """Report the metric of a proposed trial; None if it failed."""
        outcome = self._outcome(metric)
        self._study.tell(self._running.pop(number), outcome.get("value"), outcome["state"])

    def _outcome(self, metric: float | None) -> dict[str, Any]:
        states = self._optuna.trial.TrialState
        if metric is None:
            return {"state": states.FAIL}
        return {"state": states.COMPLETE, "value": metric}


def rounded(value: Any) -> Any:
    """Round a number to what a person would write; the metric does not feel the rest."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
