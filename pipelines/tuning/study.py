"""Choose hyper-parameters by trials on validation, and measure the gain of the choice.

<folder>/
  workspace/      the stages that prepare the arrays
  trials/<n>/     the metric of every query in a trial; trial 0 has the present settings
  trials.jsonl    a line a finished trial; a later call continues after the last
  tune.json       all trials, the best, and its difference from the present settings
  best.toml       the best settings, as a configuration has them
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.backtest.prepare import WORKSPACE, build_recipe, prepare_replay
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge, set_value, to_toml, validate
from pipelines.config.upgrade import refuse_old_keys
from pipelines.engine.artifacts import plain, to_json
from pipelines.engine.ray_cluster import ray_cluster
from pipelines.tuning.sampler import Sampler
from pipelines.tuning.space import BLEND, Space, as_table, find_row, parse_space
from pipelines.tuning.trials import Outcome, Trial, read_values, run_trial
from recsys.data.durable import locked, write_durably
from recsys.evaluation.config import PairedConfig
from recsys.evaluation.paired import paired
from recsys.replay.experiment import PreparedData, Recipe

JOURNAL, DOCUMENT, BEST = "trials.jsonl", "tune.json", "best.toml"
LOCK = ".tune.lock"
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
    """The trials of a folder."""

    def __init__(
        self,
        config: RunConfig,
        prepared: PreparedData,
        space: Space,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.folder, self.say = config, folder, say
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
            "recipe": self.recipe({}).digest(),
            "row": self.row,
            "metric": self.metric,
            "seed": config.seed,
        }
        self.outcomes = self._journal()

    def recipe(self, values: dict[str, Any]) -> Recipe:
        """Resolve the settings of a trial."""
        return build_recipe(self._config(values), self.sources)

    def _config(self, values: dict[str, Any]) -> RunConfig:
        refuse_old_keys(as_table(values), "--over")
        table = merge(plain(self.config), as_table(values))
        return validate(RunConfig, table, f"--over with {values}")

    def _journal(self) -> list[Outcome]:
        """Read the trials of earlier calls."""
        path = self.folder / JOURNAL
        if not path.exists():
            path.write_text(json.dumps(self.about) + "\n")
            return []
        about, *lines = path.read_text().splitlines()
        if (before := json.loads(about)) != self.about:
            names = [name for name in self.about if before.get(name) != self.about[name]]
            raise ValueError(
                f"{self.folder} holds trials with another {', '.join(names)}; name another folder "
                "with --out, or delete that one"
            )
        # A line that was cut by a kill is a trial that is made again.
        whole = [line for line in lines if line.endswith("}")]
        if whole != lines:
            write_durably(path, "".join(f"{line}\n" for line in (about, *whole)))
        return [Outcome(**json.loads(line)) for line in whole]

    def trial(self, number: int, values: dict[str, Any]) -> Trial:
        """Describe a trial."""
        return Trial(
            number=number,
            workspace=str(self.folder / WORKSPACE),
            out=str(self.folder / "trials"),
            recipe=self.recipe(values),
            row=self.row,
            metric=self.metric,
            seed=self.config.seed,
            device=self.config.device,
        )

    def run(self, num_trials: int, seconds: float | None) -> None:
        """Run the trials that are missing."""
        known = {one.number for one in self.outcomes}
        missing = [number for number in range(num_trials) if number not in known]
        if not missing:
            return
        sampler = Sampler(self.space, self.config.seed + len(self.outcomes))
        for outcome in self.outcomes:
            sampler.learn(outcome.values or self.present, outcome.metric)
        running: dict[int, dict[str, Any]] = {}
        on_ray = self.config.engine == "ray"
        with ray_cluster(self.config.ray) if on_ray else nullcontext(map) as run:
            trials = self._trials(sampler, missing, seconds, running)
            for number, metric, took, error in run(run_trial, trials):
                self._end(sampler, number, running.pop(number), metric, round(took, 2), error)

    def _trials(
        self,
        sampler: Sampler,
        missing: Sequence[int],
        seconds: float | None,
        running: dict[int, dict[str, Any]],
    ) -> Iterator[Trial]:
        """Propose trials one by one, as there is a place for them; note which are running."""
        begin = time.perf_counter()
        for place, number in enumerate(missing):
            if seconds is not None and time.perf_counter() - begin > seconds and number > 1:
                self.say(f"time is up: {len(missing) - place} trials are not begun")
                return
            values = sampler.propose(number) if number else {}
            known = [one for one in self.outcomes if one.number and one.values == values]
            try:
                trial = self.trial(number, values)
            except ValueError as error:
                self._end(sampler, number, values, None, 0.0, " ".join(str(error).split()))
                continue
            if known:
                self._end(sampler, number, values, known[0].metric, 0.0, known[0].error)
                continue
            # What a killed trial left had other values.
            shutil.rmtree(trial.folder, ignore_errors=True)
            running[number] = values
            yield trial

    def _end(
        self,
        sampler: Sampler,
        number: int,
        values: dict[str, Any],
        metric: float | None,
        seconds: float,
        error: str | None,
    ) -> None:
        """Note the outcome of a trial."""
        if number:
            sampler.end(number, metric)
        else:
            sampler.learn(self.present, metric)
        outcome = Outcome(number=number, values=values, metric=metric, seconds=seconds, error=error)
        self.outcomes.append(outcome)
        with (self.folder / JOURNAL).open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        pairs = ", ".join(f"{key}={value}" for key, value in values.items())
        gave = f"failed: {error}" if metric is None else f"{metric:.4f}"
        self.say(f"trial {number}: {gave}, {seconds:.1f} s, {pairs or 'present settings'}")

    def document(self, over: Sequence[str]) -> dict[str, Any]:
        """Compare the best trial with the present settings, and write the result."""
        done = [one for one in self.outcomes if one.metric is not None]
        present = next((one for one in done if one.number == 0), None)
        if present is None:
            reason = next((one.error for one in self.outcomes if one.error), "no trial was run")
            raise ValueError(f"the present settings cannot be measured: {reason}")
        best = max(done, key=lambda one: (one.metric or 0.0, -one.number))
        document: dict[str, Any] = {
            **self.about,
            "split": "validation",
            "space": list(over),
            "present": {"values": self.present, "metric": present.metric},
            "best": asdict(best),
            "difference": self._difference(best),
            "trials": [asdict(one) for one in sorted(self.outcomes, key=lambda one: one.number)],
        }
        write_durably(self.folder / DOCUMENT, to_json(document))
        write_durably(self.folder / BEST, to_toml(as_table(best.values)))
        return document

    def _difference(self, best: Outcome) -> dict[str, Any] | None:
        """Judge the best trial against the present settings, query by query."""
        if best.number == 0:
            return None
        values = (read_values(self.trial(0, {})), read_values(self.trial(best.number, best.values)))
        judged = paired(*values, PairedConfig(confidence=0.95))
        names = ("low", "high", "relative", "decision", "num_queries")
        return {"value": judged.difference, **{name: getattr(judged, name) for name in names}}
