"""Sources of one seed of ``benchmark_trunks``, and their lists: before the earlier events, and now.

Lists can be made by a process of their own, which leaves them in a folder.

Axes: U users, E events, P positions, k list length.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipelines.ranking.out_of_sample import queries_at
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.data.held_out import HeldOut
from recsys.data.top_k import TopK
from recsys.fitting.queries import rank_queries
from recsys.models.ease import Ease
from recsys.models.names import source_name
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.recipes.fit import Experiment
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.reproduction.fitters import FITTERS

When = Literal["before", "now"]
VECTORS = "vectors"
BEGIN = time.perf_counter()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say how long a stage took, and when it ended."""
    begin = time.perf_counter()
    yield
    now = time.perf_counter()
    print(f"[{now - BEGIN:6.1f} s] {name}: {now - begin:.1f} s", flush=True)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A prepared data set, with the value of each event."""

    prepared: Prepared
    values: Tensor
    """[E], NaN where there is none."""
    held_back: int
    max_queries: int
    most_judged: int | None = None
    """Users of a split, drawn by the seed; None for all."""

    @property
    def sequences(self) -> Sequences:
        return self.prepared.order("given")

    def with_epochs(self, most: float) -> Data:
        """Let sources train for at most so many passes."""
        recipe = self.prepared.recipe
        two_tower, sequence = (
            replace(training, max_epochs=min(most, training.max_epochs))
            for training in (recipe.two_tower_training, recipe.sequence_training)
        )
        recipe = replace(recipe, two_tower_training=two_tower, sequence_training=sequence)
        return replace(self, prepared=replace(self.prepared, recipe=recipe))

    def with_sources(self, names: Sequence[str]) -> Data:
        """Keep these sources of the recipe alone.

        Raises:
            ValueError: If the recipe has one of them not.
        """
        recipe = self.prepared.recipe
        if unknown := set(names) - set(recipe.sources):
            raise ValueError(f"no sources {sorted(unknown)}; the recipe has {recipe.sources}")
        recipe = replace(recipe, sources=tuple(names))
        return replace(self, prepared=replace(self.prepared, recipe=recipe))

    def earlier_ends(self) -> Rows:
        """Where train ends once each user's latest events are held back, [U]."""
        lengths = self.sequences.train_end - self.sequences.offsets[:-1]
        held = np.minimum(self.held_back, (lengths * 0.2).astype(np.int64))
        held = np.where(lengths >= 3, np.maximum(held, 1), 0)
        return np.asarray(self.sequences.train_end - held)

    def earlier(self, seed: int) -> HeldOut:
        """One query for each event that is held back."""
        sequences = self.sequences
        positions = concatenated_ranges(self.earlier_ends(), np.asarray(sequences.train_end))
        if len(positions) > self.max_queries:
            rng = np.random.default_rng([seed, len(positions)])
            positions = np.sort(rng.choice(positions, self.max_queries, replace=False))
        return queries_at(sequences, positions)

    def judged(self, experiment: Experiment, split: str) -> HeldOut:
        """Take a split's questions, or so many as are judged."""
        queries = experiment.queries(split)  # type: ignore[arg-type]
        if self.most_judged is not None:
            queries = queries.sample(self.most_judged, experiment.seed)
        return queries.held_out

    def linear(self, ends: Rows, max_items: int, device: torch.device) -> Ease:
        """Fit item-to-item weights on each user's events before an end, [U]."""
        visible = concatenated_ranges(np.asarray(self.sequences.offsets[:-1]), ends)
        return Ease.fit(
            self.sequences.users_of(visible),
            np.asarray(self.sequences.item_rows[visible]),
            self.prepared.num_item_rows,
            max_items=max_items,
            device=device,
        )

    def experiment(self, when: When, seed: int, device: torch.device) -> Experiment:
        """Describe what sources are fitted on."""
        sequences = self.sequences
        if when == "before":
            ends = self.earlier_ends()
            # Validated by the first event that was held back, so that steps are chosen as in a run.
            sequences = replace(
                sequences,
                train_end=ends,
                validation_end=np.minimum(ends + 1, np.asarray(sequences.train_end)),
            )
        inputs = replace(self.prepared.inputs("given"), sequences=sequences)
        return Experiment(prepared=self.prepared, inputs=inputs, seed=seed, device=device)


@dataclass(frozen=True, kw_only=True)
class SourceLists:
    """Queries with every source's list."""

    held_out: HeldOut
    lists: Mapping[str, TopK]
    lengths: Tensor
    item_counts: Tensor
    vectors: Tensor | None = None
    """Items as the sequence model knows them, [N, F]; None without one."""


def lists_from(
    experiment: Experiment, sources: Mapping[str, Any], held_out: HeldOut
) -> SourceLists:
    """Query sources about held-out events."""
    queries = replace(experiment.queries("validation"), held_out=held_out)
    return SourceLists(
        held_out=held_out,
        lists={
            source_name(name): rank_queries(source, queries, experiment.device).lists
            for name, source in sources.items()
        },
        lengths=queries.history_lengths(),
        item_counts=experiment.item_counts(),
    )


def lists_of(
    data: Data, when: When, seed: int, splits: Sequence[str], device: torch.device
) -> dict[str, SourceLists]:
    """Fit sources and query them about the earlier events or about splits."""
    experiment = data.experiment(when, seed, device)
    sources, vectors = {}, None
    for name in data.prepared.recipe.parts("blend_fast"):
        with stage(f"fit {name}, {when}"):
            fitted = FITTERS[name](experiment)
        sources[name] = fitted.source
        if isinstance(fitted.model, SequenceModel):
            with torch.no_grad():
                vectors = fitted.model.eval().all_item_vectors().float().cpu()
    if when == "before":
        questions = {"earlier": data.earlier(seed)}
    else:
        questions = {split: data.judged(experiment, split) for split in splits}
    with stage(f"query, {when}"):
        return {
            name: replace(lists_from(experiment, sources, one), vectors=vectors)
            for name, one in questions.items()
        }


def write_lists(found: Mapping[str, SourceLists], path: Path) -> None:
    """Leave lists for another process."""
    arrays = {
        f"{name}/{source}/{part}": getattr(top, part).numpy()
        for name, one in found.items()
        for source, top in one.lists.items()
        for part in ("scores", "item_rows")
    }
    for one in found.values():
        if one.vectors is not None:
            arrays[VECTORS] = one.vectors.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)  # type: ignore[arg-type]
    part.replace(path)


def read_lists(
    path: Path, data: Data, when: When, seed: int, splits: Sequence[str]
) -> dict[str, SourceLists]:
    """Read what ``write_lists`` wrote of the same seed."""
    experiment = data.experiment(when, seed, torch.device("cpu"))
    found = {}
    with np.load(path, allow_pickle=False) as file:
        vectors = torch.from_numpy(file[VECTORS]) if VECTORS in file.files else None
        for name in ("earlier",) if when == "before" else splits:
            held_out = data.earlier(seed) if when == "before" else data.judged(experiment, name)
            queries = replace(experiment.queries("validation"), held_out=held_out)
            sources = [key.split("/")[1] for key in file.files if key.startswith(f"{name}/")]
            lists = {
                source: TopK(
                    *(
                        torch.from_numpy(file[f"{name}/{source}/{part}"])
                        for part in ("scores", "item_rows")
                    )
                )
                for source in dict.fromkeys(sources)
            }
            found[name] = SourceLists(
                held_out=held_out,
                lists=lists,
                lengths=queries.history_lengths(),
                item_counts=experiment.item_counts(),
                vectors=vectors,
            )
    return found
