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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from features.parallel import Runner
from pipelines.backtest.prepare import WORKSPACE, build_recipe, prepare_replay
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge, to_toml, validate
from pipelines.config.upgrade import refuse_old_keys
from pipelines.engine.artifacts import plain, to_json
from pipelines.engine.ray_cluster import ray_cluster
from pipelines.tuning.sampler import Sampler
from pipelines.tuning.space import BLEND, Setting, as_table, find_row
from pipelines.tuning.trials import Outcome, Processes, Trial, read_values, run_trial
from recsys.data.durable import locked, write_durably
from recsys.evaluation.config import PairedConfig
from recsys.evaluation.paired import paired
from recsys.replay.experiment import PreparedData, Recipe

JOURNAL, DOCUMENT, BEST = "trials.jsonl", "tune.json", "best.toml"
LOCK = ".tune.lock"
METRICS = ("recall@5", "recall@10", "recall@50", "ndcg@5", "ndcg@10", "ndcg@50", "mrr@10")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How many trials, and how long."""

    num_trials: int = 20
    """In all, the present settings and trials of earlier calls included."""
    seconds: float | None = None
    """Time after which no trial begins; None waits for all."""
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.num_trials < 2 or self.jobs < 1:
            raise ValueError(
                f"--trials must be >= 2 (the first has the present settings) and --jobs >= 1, got "
                f"{self.num_trials} and {self.jobs}"
            )


def tune(
    config: RunConfig,
    space: Sequence[Setting],
    tuning: Tuning,
    folder: Path,
    say: Say,
    *,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Run trials until there are enough, and return the document of ``tune.json``."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        prepared = prepared_for(config, folder, show_progress=show_progress)
        study = Study(config, prepared, tuple(space), folder, say)
        study.run(tuning)
        return study.document()


def prepared_for(config: RunConfig, folder: Path, *, show_progress: bool) -> PreparedData:
    """Prepare the arrays that all trials are fitted on."""
    # Nothing is replayed, so whatever a replay could not continue is no obstacle.
    plainly = replace(config, backtest=replace(config.backtest, policies=("full",), models=()))
    return prepare_replay(plainly, folder, show_progress=show_progress)


class Study:
    """The trials of a folder."""

    def __init__(
        self,
        config: RunConfig,
        prepared: PreparedData,
        space: tuple[Setting, ...],
        folder: Path,
        say: Say,
    ) -> None:
        self.config, self.folder, self.say = config, folder, say
        self.space, self.sources = space, tuple(prepared.recipe.models)
        self.row, self.metric = find_row(space), config.evaluation.primary_metric
        if self.row not in (*self.sources, BLEND):
            raise ValueError(
                f"{', '.join(setting.key for setting in space)} shape the model {self.row}, which "
                "this configuration leaves out; turn it on with --set"
            )
        if self.metric not in METRICS:
            raise ValueError(
                f"trials are compared by one of {', '.join(METRICS)}, got "
                f"evaluation.primary_metric = {self.metric!r}"
            )
        # Checks the keys before anything is fitted.
        for setting in space:
            value = setting.choices[0] if setting.choices else setting.low
            self._config({setting.key: int(value) if setting.is_whole else value})
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

    def run(self, tuning: Tuning) -> None:
        """Run the trials that are missing."""
        known = {one.number for one in self.outcomes}
        missing = [number for number in range(tuning.num_trials) if number not in known]
        if not missing:
            return
        sampler = Sampler(self.space, self.config.seed + len(self.outcomes))
        for outcome in self.outcomes:
            sampler.learn(outcome.values or self._present(), outcome.metric)
        running: dict[int, dict[str, Any]] = {}
        with self._runner(tuning) as run:
            results = run(run_trial, self._trials(sampler, missing, tuning.seconds, running))
            for number, metric, seconds, error in results:
                self._end(sampler, Outcome(
                    number=number, values=running.pop(number), metric=metric,
                    seconds=round(seconds, 2), error=error,
                ))  # fmt: skip

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
                known = [Outcome(
                    number=number, values=values, metric=None, seconds=0.0,
                    error=" ".join(str(error).split()),
                )]  # fmt: skip
            if known:
                self._end(sampler, replace(known[0], number=number, seconds=0.0))
                continue
            # What a killed trial left had other values.
            shutil.rmtree(trial.folder, ignore_errors=True)
            running[number] = values
            yield trial

    def _runner(self, tuning: Tuning) -> AbstractContextManager[Runner]:
        if self.config.engine == "ray":
            return ray_cluster(self.config.ray)
        return nullcontext(Processes(tuning.jobs))

    def _end(self, sampler: Sampler, outcome: Outcome) -> None:
        if outcome.number:
            sampler.end(outcome.number, outcome.metric)
        else:
            sampler.learn(self._present(), outcome.metric)
        self.outcomes.append(outcome)
        with (self.folder / JOURNAL).open("a") as file:
            file.write(outcome.line())
        pairs = [f"{key}={value}" for key, value in outcome.values.items()]
        values = ", ".join(pairs or ["present settings"])
        gave = f"failed: {outcome.error}" if outcome.metric is None else f"{outcome.metric:.4f}"
        self.say(f"trial {outcome.number}: {gave}, {outcome.seconds:.1f} s, {values}")

    def _present(self) -> dict[str, Any]:
        """Look up the present values of what trials vary."""
        found: dict[str, Any] = {}
        for setting in self.space:
            value: Any = plain(self.config)
            for part in setting.key.split("."):
                value = value[part]
            found[setting.key] = value
        return found

    def document(self) -> dict[str, Any]:
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
            "space": [str(setting) for setting in self.space],
            "present": {"values": self._present(), "metric": present.metric},
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
        config = PairedConfig(confidence=0.95)
        judged = paired(
            read_values(self.trial(0, {})),
            read_values(self.trial(best.number, best.values)),
            config,
        )
        return {
            "value": judged.difference,
            "low": judged.low,
            "high": judged.high,
            "relative": judged.relative,
            "decision": judged.decision,
            "num_queries": judged.num_queries,
        }
