"""The gate's answer on any two workspaces, by the ranks that their evaluations stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.config.release import ReleaseConfig
from pipelines.engine.artifacts import read_json
from pipelines.inputs.tensors import released_order
from pipelines.publishing.checks import served_row
from pipelines.publishing.comparison import Compared, compare, comparison_verdicts
from pipelines.publishing.explain import power_of
from pipelines.publishing.same_queries import RunEvents, answers_of, same_stored_queries
from recsys.data.dataset import Sequences, Split
from recsys.evaluation.paired import Decision
from serving.bundle.manifest import Verdict


@dataclass(frozen=True, kw_only=True)
class GateAnswer:
    """The gate's answer on a challenger in place of a champion."""

    decision: Decision
    """``better``, ``worse`` or ``not enough evidence`` over all queries."""
    releases: bool
    """True if the gate would publish the challenger: every verdict passed."""
    compared: Compared
    """Difference, interval and power (``by``, of ``config.compared_by``; None with too few common
    queries), the same of ``config.metric`` (``named``), and the slices (``losses``)."""
    verdicts: list[Verdict]
    """One over all queries, then one for each slice that lost too much, or one for all slices."""
    power: dict[str, float | int | str | None]
    """Interval and smallest difference found, as the decision log records them."""
    config: ReleaseConfig
    """Metrics and margins that decided (``max_loss``, ``max_slice_loss``, ``confidence``)."""


class RunAnswers:
    """A workspace's events and the ranks that its evaluation gave to one split."""

    def __init__(self, workspace: Path, split: Split, model: str | None = None) -> None:
        """Find the files.

        Args:
            workspace: Folder of a run.
            split: Of its held-out events.
            model: Row of the evaluation; None takes the row that is served.

        Raises:
            ValueError: The run was not evaluated, or has no such model.
        """
        self.features = workspace / "build_features"
        self.split: Split = split
        metrics = workspace / "evaluate" / "metrics.json"
        if not metrics.exists():
            raise ValueError(f"{workspace} was not evaluated; run recsys run --until evaluate")
        self.order = released_order(self.features)
        self.table = workspace / "evaluate" / f"per_user_{self.order}_{split}.parquet"
        self.model = model or served_row(read_json(metrics)[self.order][split])
        if f"rank_{self.model}" not in pl.read_parquet_schema(self.table):
            raise ValueError(f"{self.table} has no ranks of the model {self.model!r}")

    def events(self) -> RunEvents:
        """Read the run's events."""
        sequences = Sequences.load(self.features / "sequences" / self.order)
        return RunEvents.load(self.features, sequences)

    def answers(self, events: RunEvents) -> pl.DataFrame:
        """Read the ranks of each held-out item, by ids."""
        columns = ["user_row", "item_row", f"rank_{self.model}"]
        table = pl.read_parquet(self.table, columns=columns)
        return answers_of(table, self.model, events, self.split)


def compare_workspaces(
    champion: Path,
    challenger: Path,
    *,
    config: ReleaseConfig | None = None,
    split: Split = "test",
    models: tuple[str | None, str | None] = (None, None),
    seed: int = 0,
) -> GateAnswer:
    """Answer as the release gate would: may the challenger replace the champion?

    Args:
        champion: Workspace whose list is served.
        challenger: Workspace whose list would replace it.
        config: Metrics and margins; the defaults of ``[release]`` without.
        split: Held-out events that both answered.
        models: Row of the evaluation of each side; None takes the row that is served.
        seed: Draws the queries, if there are more than ``config.max_compared``.

    Raises:
        ValueError: A workspace was not evaluated, or has no such model.
    """
    config = config or ReleaseConfig()
    before, after = (
        RunAnswers(path, split, model)
        for path, model in zip((champion, challenger), models, strict=True)
    )
    events = after.events()
    queries = same_stored_queries(
        after.answers(events), before.answers(before.events()), events, config=config, seed=seed
    )
    sequences, items = events.sequences, pl.read_parquet(after.features / "items.parquet")
    counts = sequences.item_counts(sequences.visible_end("train"), len(events.item_ids))
    found = compare(queries, counts, config, item_domains(items))
    verdicts = comparison_verdicts(found, config)
    return GateAnswer(
        decision="not enough evidence" if found.by is None else found.by.decision,
        releases=all(one.passed for one in verdicts),
        compared=found,
        verdicts=verdicts,
        power=power_of(found, config.compared_by),
        config=config,
    )


def item_domains(items: pl.DataFrame) -> list[str]:
    """Read the domain of each item row; empty if the items have none."""
    if "domain" not in items.columns:
        return []
    return ["", *items.sort("item_row")["domain"].cast(pl.String).fill_null("")]
