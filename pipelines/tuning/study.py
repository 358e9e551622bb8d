"""Choose hyper-parameters by trials on validation, and measure the gain of the choice.

<folder>/
  workspace/      the stages that prepare the arrays
  trials/<n>/     the metric of every query in a trial; trial 0 has the present settings
  trials.db       Optuna's study; a later call continues it
  tune.json       all trials, the best, and its difference from the present settings
  best.toml       the best settings, as a configuration has them

The test split is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.backtest.prepare import build_recipe, prepare_replay
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge, refuse_old_keys, set_value, to_toml, validate
from pipelines.engine.artifacts import plain, write_json
from pipelines.tuning.space import BLEND, Space, as_table, find_row, load_optuna, parse_space
from recsys.data.durable import locked, write_durably
from recsys.evaluation.config import PairedConfig
from recsys.evaluation.paired import paired
from recsys.fitting.spec import device_named
from recsys.replay.experiment import PreparedData, RecipeFitter, measure
from recsys.training.loop import TrainingDiverged

TRIALS, DOCUMENT, BEST = "trials.db", "tune.json", "best.toml"
LOCK, VALUES = ".tune.lock", "values.npy"
METRICS = ("recall@5", "recall@10", "recall@50", "ndcg@5", "ndcg@10", "ndcg@50", "mrr@10")


def tune(
    config: RunConfig,
    over: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    num_trials: int,
    seconds: float | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Run trials until there are enough, and return the document of ``tune.json``.

    Args:
        over: Keys and their values, see `pipelines.tuning.space`.
        num_trials: In all, the present settings and trials of earlier calls included.
        seconds: Time after which no trial begins; None waits for all.
    """
    folder, space = folder.absolute(), parse_space(over)
    folder.mkdir(parents=True, exist_ok=True)
    # Nothing is replayed, so a model that a replay cannot continue is no obstacle.
    plainly = replace(config, backtest=replace(config.backtest, policies=("full",), models=()))
    with locked(folder / LOCK):
        prepared = prepare_replay(plainly, folder, show_progress=show_progress)
        study = Study(config, prepared, space, folder, say)
        study.run(num_trials, seconds)
        return study.document(over)


class Study:
    """The trials of a folder; each is a line of ``tune.json``."""

    def __init__(
        self,
        config: RunConfig,
        prepared: PreparedData,
        space: Space,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.prepared, self.folder, self.say = config, prepared, folder, say
        self.space, self.sources = space, tuple(prepared.recipe.models)
        self.row, self.metric = find_row(space), config.evaluation.primary_metric
        if self.row not in (*self.sources, BLEND):
            raise ValueError(
                f"{', '.join(space)} shape the model {self.row}, which "
                "this configuration leaves out; turn it on with --set"
            )
        if self.metric not in METRICS:
            raise ValueError(
                f"trials are compared by one of {', '.join(METRICS)}, got "
                f"evaluation.primary_metric = {self.metric!r}"
            )
        # Checks the keys before anything is fitted.
        for key, values in space.items():
            self._config({key: values.choices[0] if hasattr(values, "choices") else values.low})
        present = plain(config)
        self.present = {key: set_value(present, key) for key in space}
        self.about = {
            "data_digest": prepared.data_digest,
            "recipe": build_recipe(config, self.sources).digest(),
            "row": self.row,
            "metric": self.metric,
            "seed": config.seed,
        }
        self.optuna = load_optuna()
        self.study = self._open()

    def _config(self, values: dict[str, Any]) -> RunConfig:
        refuse_old_keys(as_table(values), "--over")
        table = merge(plain(self.config), as_table(values))
        return validate(RunConfig, table, f"--over with {values}")

    def _open(self) -> Any:
        """Open the study of earlier calls; a trial that was killed is made again."""
        study = self.optuna.create_study(
            study_name="tune",
            direction="maximize",
            storage=f"sqlite:///{self.folder / TRIALS}",
            load_if_exists=True,
        )
        before = study.user_attrs.get("about", self.about)
        if before != self.about:
            names = [name for name in self.about if before.get(name) != self.about[name]]
            raise ValueError(
                f"{self.folder} holds trials with another {', '.join(names)}; name another folder "
                "with --out, or delete that one"
            )
        study.set_user_attr("about", self.about)
        for trial in study.trials:
            if not trial.state.is_finished():
                study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        study.sampler = self.optuna.samplers.TPESampler(seed=self.config.seed + len(study.trials))
        return study

    def outcomes(self) -> list[dict[str, Any]]:
        """List the finished trials by number, that of the present settings first."""
        present = self.study.user_attrs.get("present")
        tried = (one.user_attrs.get("outcome") for one in self.study.trials)
        return [one for one in (present, *tried) if one]

    def run(self, num_trials: int, seconds: float | None) -> None:
        """Run the trials that are missing."""
        begin, states = time.perf_counter(), self.optuna.trial.TrialState
        if not self.outcomes():
            self.study.set_user_attr("present", self.measured(0, {}))
        while (done := len(self.outcomes())) < num_trials:
            if seconds is not None and time.perf_counter() - begin > seconds and done > 1:
                self.say(f"time is up: {num_trials - done} trials are not begun")
                return
            trial = self.study.ask(dict(self.space))
            # Rounded to what a person would write.
            values = {
                key: float(f"{value:.4g}") if isinstance(value, float) else value
                for key, value in trial.params.items()
            }
            outcome = self.measured(trial.number + 1, values)
            trial.set_user_attr("outcome", outcome)
            failed = outcome["metric"] is None
            self.study.tell(trial, outcome["metric"], states.FAIL if failed else states.COMPLETE)

    def measured(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        """Fit and measure a trial, and describe it; a failed one has no metric but an error."""
        begin, folder = time.perf_counter(), self._folder(number)
        metric, error = None, None
        try:
            fitter = RecipeFitter(
                recipe=build_recipe(self._config(values), self.sources),
                inputs=self.prepared.inputs,
                seed=self.config.seed,
                device=device_named(self.config.device),
                checkpoints=folder / "checkpoints",
            )
            by_query = measure(fitter, self.row, self.metric)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / VALUES, by_query, allow_pickle=False)
            metric = float(np.nanmean(by_query))
        except (ValueError, TrainingDiverged) as reason:
            error = " ".join(str(reason).split())
        seconds = round(time.perf_counter() - begin, 2)
        pairs = ", ".join(f"{key}={value}" for key, value in values.items())
        gave = f"failed: {error}" if metric is None else f"{metric:.4f}"
        self.say(f"trial {number}: {gave}, {seconds:.1f} s, {pairs or 'present settings'}")
        outcome = {"number": number, "values": values, "metric": metric, "seconds": seconds}
        return {**outcome, "error": error}

    def _folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:03d}"

    def document(self, over: Sequence[str]) -> dict[str, Any]:
        """Compare the best trial with the present settings, and write the result."""
        outcomes = self.outcomes()
        present, done = outcomes[0], [one for one in outcomes if one["metric"] is not None]
        if present["metric"] is None:
            raise ValueError(f"the present settings cannot be measured: {present['error']}")
        best = max(done, key=lambda one: (one["metric"], -one["number"]))
        document: dict[str, Any] = {
            **self.about,
            "split": "validation",
            "space": list(over),
            "present": {"values": self.present, "metric": present["metric"]},
            "best": best,
            "difference": self._difference(best["number"]),
            "trials": outcomes,
        }
        write_json(self.folder / DOCUMENT, document)
        write_durably(self.folder / BEST, to_toml(as_table(best["values"])))
        return document

    def _difference(self, best: int) -> dict[str, Any] | None:
        """Judge the best trial against the present settings, query by query."""
        if best == 0:
            return None
        values = [
            np.load(self._folder(number) / VALUES, allow_pickle=False) for number in (0, best)
        ]
        judged = paired(values[0], values[1], PairedConfig(confidence=0.95))
        names = ("low", "high", "relative", "decision", "num_queries")
        return {"value": judged.difference, **{name: getattr(judged, name) for name in names}}
