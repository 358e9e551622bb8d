"""Teachers that give scored lists: the generative model and the blend.

A teacher lists what it would recommend after each user's training history, and after histories of
training that end earlier or have lost events, so that there are more lists than users.

Axes: B queries, K items of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.held_out import HeldOut
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks
from recsys.reproduction.fitting import FITTERS, Experiment
from recsys.reproduction.ranking import Source, metrics_of, rank_all
from recsys.reproduction.recipe import SOURCES
from recsys.reproduction.run import blended_by_halves, blended_in_parts, learned, moved
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_lists import blended_lists
from recsys.training.code_distillation import with_dropped_events
from recsys.training.list_distillation import LEFT_OUT

KEPT = 100
"""Items of a teacher's list."""
QUERIES = 512
DROPPED = 0.4
"""Most of a history that is lost."""

Numbers = dict[str, Any]


class TeacherLists(NamedTuple):
    """Scored lists of a teacher."""

    queries: JaggedBatch
    item_rows: Tensor
    """[B, K]; 0 where a list is short."""
    scores: Tensor
    """[B, K], logarithms of how likely it finds them, up to a constant of each list."""

    def save(self, path: Path) -> None:
        history = self.queries["history"]
        arrays = {
            "offsets": history.offsets,
            "history": history.values.int(),
            "item_rows": self.item_rows.int(),
            "scores": self.scores,
        }
        if "history.times" in self.queries:
            arrays["times"] = self.queries["history.times"].values
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})

    @classmethod
    def load(cls, path: Path) -> TeacherLists:
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in file.files}
        features = {"history": Jagged(found["history"].long(), found["offsets"])}
        if "times" in found:
            features["history.times"] = Jagged(found["times"], found["offsets"])
        return cls(JaggedBatch(features), found["item_rows"].long(), found["scores"])


def histories(experiment: Experiment, more: int) -> JaggedBatch:
    """Collect every user's training history, and so many times as many cut and thinned ones.

    Validation's labels are not looked at: its queries are what training saw of each user.
    """
    sequences = experiment.sequences
    whole = HeldOut.of(sequences, "validation").positions
    labels = sequences.label_positions("train")
    draws = np.random.default_rng([experiment.seed, len(labels)])
    torch.manual_seed(experiment.seed)
    parts = [_histories_at(experiment, whole)]
    for _ in range(more):
        positions = draws.choice(labels, min(len(whole), len(labels)), replace=False)
        parts.append(with_dropped_events(_histories_at(experiment, positions), DROPPED))
    features = {}
    for name in parts[0].features:
        ragged = [part[name] for part in parts]
        lengths = torch.cat([one.lengths() for one in ragged])
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        features[name] = Jagged(torch.cat([one.values for one in ragged]), offsets)
    kept = (features["history"].lengths() > 0).nonzero()[:, 0]
    return JaggedBatch({name: value.take(kept) for name, value in features.items()})


def _histories_at(experiment: Experiment, positions: np.ndarray[Any, Any]) -> JaggedBatch:
    found = experiment.sequences.queries(positions, max_history=experiment.recipe.max_history)
    wanted = {name: one for name, one in found.features.items() if name.startswith("history")}
    return JaggedBatch(wanted)


@torch.no_grad()
def teacher_lists_of(
    experiment: Experiment,
    sources: Mapping[str, Source],
    blend: LearnedBlend | None,
    queries: JaggedBatch,
) -> TeacherLists:
    """List what one source, or several by their blend, have for histories."""
    device, rows, scores = experiment.device, [], []
    merged = None if blend is None else moved(blend, device)
    counts, size = experiment.item_counts().to(device), experiment.prepared.num_item_rows
    wanted = min(experiment.recipe.num_candidates, size - 1)
    for part in torch.split(torch.arange(queries.batch_size), QUERIES):
        some = JaggedBatch({name: one.take(part) for name, one in queries.features.items()})
        some = some.to(device)
        history = some["history"]
        allowed = torch.ones(len(part), size, dtype=torch.bool, device=device)
        allowed[history.segments(), history.values] = False
        allowed[:, 0] = False
        nothing = Jagged(history.values[:0], torch.zeros_like(history.offsets))
        lists = {
            SOURCES.get(name, name): source(some, allowed, nothing, wanted).lists
            for name, source in sources.items()
        }
        if merged is None:
            (top,) = lists.values()
        else:
            with device:
                lengths = history.lengths()
                found = blended_lists(merged, lists, lengths, counts, KEPT)
            top = TopK(found.scores, found.item_rows)
        rows.append(_wide(top.item_rows, 0).clamp(min=0).cpu())
        scores.append(_wide(top.scores.float(), LEFT_OUT).nan_to_num(neginf=LEFT_OUT).cpu())
    return TeacherLists(queries, torch.cat(rows), torch.cat(scores))


def _wide(lists: Tensor, filler: float) -> Tensor:
    return torch.nn.functional.pad(
        lists[:, :KEPT], (0, max(0, KEPT - lists.shape[1])), value=filler
    )


def metrics_of_lists(
    experiment: Experiment, lists: Mapping[str, TopK], metrics: Sequence[str]
) -> Numbers:
    """Measure one teacher's lists of each split."""
    found: Numbers = {}
    for split, top in lists.items():
        targets = experiment.question(split).held_out.targets  # type: ignore[arg-type]
        values = metrics_of(list_ranks(top.item_rows, targets).values, targets)
        found |= {name: values[name] for name in metrics}
        found |= {f"{split} {name}": values[name] for name in metrics}
    return found


def listing_rows(
    experiment: Experiment,
    teachers: Sequence[str],
    folder: Path,
    splits: Sequence[str],
    more: int,
    metrics: Sequence[str],
) -> list[Numbers]:
    """Train what teachers are made of, measure them, and write what they say to files.

    Args:
        teachers: ``generative``, ``blend``, ``blend_fast``.
        folder: Gets a file for each.
        splits: Measured ones, validation first; a blend learns on that.
        more: Further histories, times the number of users.
        metrics: Which numbers.
    """
    recipe, queries = experiment.recipe, histories(experiment, more)
    experiment = replace(experiment, checkpoints=folder / "checkpoints")
    parts = {one: [one] if one == "generative" else recipe.parts(one) for one in teachers}
    sources, sizes, lists = {}, {}, {}
    for name in dict.fromkeys(name for one in parts.values() for name in one):
        fitted = FITTERS[name](experiment)
        print(f"fitted {name}", flush=True)
        sources[name] = fitted.source
        weights = [] if fitted.model is None else list(fitted.model.parameters())
        sizes[name] = sum(one.numel() for one in weights)
        for split in splits:
            question = experiment.question(split)  # type: ignore[arg-type]
            found = rank_all(fitted.source, question, recipe.num_candidates, experiment.device)
            lists[name, split] = found.lists
    rows = []
    for teacher, names in parts.items():
        blend = None
        if teacher != "generative":
            blend, of_splits = blended(experiment, names, lists, splits)
        else:
            of_splits = {split: lists[teacher, split] for split in splits}
        lists = teacher_lists_of(
            experiment, {name: sources[name] for name in names}, blend, queries
        )
        lists.save(folder / f"{teacher}.npz")
        rows.append(
            {
                "teacher": teacher,
                "num_parameters": sum(sizes[name] for name in names),
                "histories": len(lists.item_rows),
                **metrics_of_lists(experiment, of_splits, metrics),
            }
        )
    return rows


def blended(
    experiment: Experiment,
    names: Sequence[str],
    lists: Mapping[tuple[str, str], TopK],
    splits: Sequence[str],
) -> tuple[LearnedBlend, dict[str, TopK]]:
    """Learn a blend on validation's lists and merge those of every split."""
    of_splits = {
        split: {SOURCES.get(name, name): lists[name, split] for name in names} for split in splits
    }
    queries = experiment.question("validation")
    counts, device = experiment.item_counts(), experiment.device
    blend = learned(
        of_splits["validation"],
        queries.held_out.targets,
        queries.history_lengths(),
        counts,
        experiment.recipe.blend,
        device,
    )
    found = {"validation": blended_by_halves(experiment, of_splits["validation"], queries)}
    if "test" in of_splits:
        lengths = experiment.question("test").history_lengths()
        found["test"] = blended_in_parts(blend, of_splits["test"], lengths, counts, device)
    return blend, found
