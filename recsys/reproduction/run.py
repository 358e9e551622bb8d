"""Parts of a run with one seed: fit, list, blend, measure; finished ones are not made again.

A run's folder:

    <row>.npz       its lists of each split, and the ranks of the targets there
    <row>.json      its metrics and how long it took
    checkpoints/    of a training that is not done
    result.json     all rows; written last

Looks at the test split go to ``ledger.jsonl`` beside the runs before any of its numbers exist.

Axes: U queries of a split, M targets, N item rows, k list length.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks
from recsys.reproduction.fitting import FITTERS, Experiment
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import Question, Ranked, metrics_of, rank_all
from recsys.reproduction.recipe import SOURCES
from recsys.retrieval.blend.learned import LearnedBlend, LearnedBlendConfig
from recsys.retrieval.blend.source_lists import blended_lists, fitted_blend
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.quality import invalid_share

MeasuredSplit = Literal["validation", "test"]
RESULT = "result.json"
BLENDED_QUERIES = 1024
KEPT = 100
"""Places of a blended list that are kept; metrics look at 50."""
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What is asked of one run."""

    order: str
    """Of events at one time."""
    seed: int
    splits: tuple[MeasuredSplit, ...] = ("validation", "test")
    device: str = "auto"
    why: str = "recsys reproduce"
    """Noted in the ledger of test looks."""
    shows_progress: bool = False
    only: tuple[str, ...] = ()
    """Rows to make, where several processes share the work of a run; all by default."""

    @property
    def name(self) -> str:
        return f"{self.order}-{self.seed}"


def device_named(name: str) -> torch.device:
    """Take a GPU where there is one for ``auto``."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def described(prepared: Prepared, settings: RunSettings) -> dict[str, Any]:
    """Say what a number is of."""
    return {
        "data_set": prepared.name,
        "data_digest": prepared.data_digest,
        "recipe": prepared.recipe.digest(),
        "order": settings.order,
        "seed": settings.seed,
        "splits": list(settings.splits),
        "device": device_text(device_named(settings.device)),
    }


def read_result(path: Path, prepared: Prepared) -> dict[str, Any] | None:
    """Read a finished part.

    Raises:
        ValueError: It was made from other data or by another recipe; both are named.
    """
    if not path.exists():
        return None
    result = read_json(path)
    for what, here in (("data_digest", prepared.data_digest), ("recipe", prepared.recipe.digest())):
        if result[what] != here:
            raise ValueError(
                f"{path} was made with {what.replace('_', ' ')} {result[what]}, this run has "
                f"{here}; take another folder, or delete that one to run it again"
            )
    return result


def finished_row(
    folder: Path, row: str, prepared: Prepared, settings: RunSettings
) -> dict[str, Any] | None:
    """Read a row that an earlier call measured on these splits."""
    done = read_result(folder / f"{row}.json", prepared)
    if done is None or not set(settings.splits) <= set(done["splits"]):
        return None
    found: dict[str, Any] = done["row"]
    return found


def keep_row(
    folder: Path,
    row: str,
    numbers: Mapping[str, Any],
    found: Mapping[MeasuredSplit, Ranked],
    about: Mapping[str, Any],
) -> None:
    """Write a row's lists, then its numbers and what they are of."""
    save_ranked(folder / f"{row}.npz", found)
    write_json(folder / f"{row}.json", {**about, "row": dict(numbers)})


def measured_model(
    experiment: Experiment, name: str, folder: Path, settings: RunSettings, row: str | None = None
) -> dict[str, Any]:
    """Fit one model and keep its lists.

    Args:
        row: What files and numbers are called, if not by the model's name.
    """
    prepared, row = experiment.prepared, row or name
    done = finished_row(folder, row, prepared, settings)
    if done is not None:
        return done
    begin = time.perf_counter()
    fitted = FITTERS[name](experiment)
    fit_seconds = time.perf_counter() - begin
    k = min(experiment.recipe.num_candidates, prepared.num_item_rows - 1)
    found = {}
    for split in settings.splits:
        question = experiment.question(split)
        found[split] = rank_all(fitted.source, question, k, experiment.device)
    numbers = {
        "fit_seconds": round(fit_seconds, 2),
        "seconds": round(time.perf_counter() - begin, 2),
        "training": None if fitted.training is None else asdict(fitted.training),
        **metrics_by_split(experiment, found),
    }
    keep_row(folder, row, numbers, found, described(prepared, settings))
    return numbers


def measured_blend(
    experiment: Experiment, name: str, folder: Path, settings: RunSettings
) -> dict[str, Any]:
    """Learn weights on validation's lists and merge those of every split."""
    done = finished_row(folder, name, experiment.prepared, settings)
    if done is not None:
        return done
    begin = time.perf_counter()
    if "validation" not in settings.splits:
        raise ValueError("a blend is learned on validation; measure that split too")
    parts = experiment.recipe.parts(name)
    lists = {split: source_lists(folder, parts, split) for split in settings.splits}
    counts = experiment.item_counts()
    blend = learned_on_validation(experiment, lists["validation"])
    found = {}
    for split in settings.splits:
        asked = experiment.question(split)
        if split == "test":
            merged = blended_in_parts(
                blend, lists[split], asked.history_lengths(), counts, experiment.device
            )
        else:
            merged = blended_by_halves(experiment, lists[split], asked)
        found[split] = Ranked(merged, list_ranks(merged.item_rows, asked.held_out.targets).values)
    blend.save(folder / name)
    numbers = {
        "fit_seconds": round(time.perf_counter() - begin, 2),
        "seconds": round(time.perf_counter() - begin, 2),
        "weights": dict(zip(blend.sources, blend.weights[-1, -1].tolist(), strict=True)),
        **metrics_by_split(experiment, found),
    }
    keep_row(folder, name, numbers, found, described(experiment.prepared, settings))
    return numbers


def source_lists(
    folder: Path, models: Sequence[str], split: MeasuredSplit, suffix: str = ""
) -> dict[str, TopK]:
    """Read what models listed for a split, by the names that a blend has for them."""
    return {
        SOURCES.get(model, model): load_ranked(folder / f"{model}{suffix}.npz")[split].lists
        for model in models
    }


def learned_on_validation(experiment: Experiment, lists: Mapping[str, TopK]) -> LearnedBlend:
    """Learn a blend from validation's lists."""
    question = experiment.question("validation")
    return learned(
        lists,
        question.held_out.targets,
        question.history_lengths(),
        experiment.item_counts(),
        experiment.recipe.blend,
        experiment.device,
    )


def blended_by_halves(
    experiment: Experiment, lists: Mapping[str, TopK], question: Question
) -> TopK:
    """Merge validation's lists, each half of the users by weights learned on the other."""
    targets, lengths = question.held_out.targets, question.history_lengths()
    drawn = np.random.default_rng([experiment.seed, len(lengths)]).permutation(len(lengths))
    half = torch.from_numpy(drawn % 2)
    counts, config = experiment.item_counts(), experiment.recipe.blend
    parts, places = [], []
    for fold in (0, 1):
        own, others = ((half == fold).nonzero()[:, 0], (half != fold).nonzero()[:, 0])
        learned_on = {name: rows_of(top, others) for name, top in lists.items()}
        others_targets, device = targets.take(others), experiment.device
        blend = learned(learned_on, others_targets, lengths[others], counts, config, device)
        asked = {name: rows_of(top, own) for name, top in lists.items()}
        parts.append(blended_in_parts(blend, asked, lengths[own], counts, device))
        places.append(own)
    order = torch.cat(places).argsort()
    return TopK(*(torch.cat(part)[order] for part in zip(*parts, strict=True)))


def rows_of(top: TopK, rows: torch.Tensor) -> TopK:
    """Take some queries' lists."""
    return TopK(top.scores[rows], top.item_rows[rows])


def learned(
    lists: Mapping[str, TopK],
    targets: Jagged,
    history_lengths: torch.Tensor,
    item_counts: torch.Tensor,
    config: LearnedBlendConfig,
    device: torch.device,
) -> LearnedBlend:
    """Learn a blend on a device; its weights come back to the host."""
    # The blend makes its tensors on the default device.
    with device:
        blend = fitted_blend(
            {name: on_device(top, device) for name, top in lists.items()},
            targets.to(device),
            history_lengths.to(device),
            item_counts.to(device),
            config,
        )
    return moved(blend, torch.device("cpu"))


def moved(blend: LearnedBlend, device: torch.device) -> LearnedBlend:
    """Copy a blend to a device."""
    there = copy.copy(blend)
    for name, value in vars(blend).items():
        if isinstance(value, torch.Tensor):
            setattr(there, name, value.to(device))
    return there


def blended_in_parts(
    blend: LearnedBlend,
    lists: Mapping[str, TopK],
    history_lengths: torch.Tensor,
    item_counts: torch.Tensor,
    device: torch.device,
) -> TopK:
    """Merge so many queries at a time; lists keep the first candidates."""
    merged = []
    k = sum(top.item_rows.shape[1] for top in lists.values())
    there, counts = moved(blend, device), item_counts.to(device)
    for rows in torch.split(torch.arange(len(history_lengths)), BLENDED_QUERIES):
        part = {name: on_device(rows_of(top, rows), device) for name, top in lists.items()}
        with device:
            blended = blended_lists(there, part, history_lengths[rows].to(device), counts, k)
        merged.append(TopK(blended.scores[:, :KEPT].cpu(), blended.item_rows[:, :KEPT].cpu()))
    return TopK(*(torch.cat(parts) for parts in zip(*merged, strict=True)))


def on_device(top: TopK, device: torch.device) -> TopK:
    """Move lists."""
    return TopK(*(part.to(device) for part in top))


def metrics_by_split(
    experiment: Experiment, found: Mapping[MeasuredSplit, Ranked]
) -> dict[str, dict[str, float]]:
    """Mean of every metric by split."""
    return {
        split: metrics_of(ranked.ranks, experiment.question(split).held_out.targets)
        for split, ranked in found.items()
    }


def invalid_ids(
    folder: Path, codes: ItemCodes | None, splits: Sequence[MeasuredSplit]
) -> float | None:
    """Share of what the generative model listed that is no item with a semantic ID."""
    path = folder / "generative.npz"
    if codes is None or not path.exists():
        return None
    found = load_ranked(path)
    rows = torch.cat([found[split].lists.item_rows.flatten() for split in splits])
    return invalid_share(rows, codes.codes)


def save_ranked(path: Path, found: Mapping[MeasuredSplit, Ranked]) -> None:
    """Write lists and ranks of every split into one file."""
    arrays = {}
    for split, ranked in found.items():
        arrays[f"{split}/scores"] = ranked.lists.scores.numpy()
        arrays[f"{split}/item_rows"] = ranked.lists.item_rows.numpy().astype(np.int32)
        arrays[f"{split}/ranks"] = ranked.ranks.numpy()
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)  # type: ignore[arg-type]
    part.replace(path)


def load_ranked(path: Path) -> dict[MeasuredSplit, Ranked]:
    """Read what `save_ranked` wrote."""
    splits: tuple[MeasuredSplit, ...] = ("validation", "test")
    with np.load(path, allow_pickle=False) as file:
        return {
            split: Ranked(
                TopK(
                    torch.from_numpy(file[f"{split}/scores"]),
                    torch.from_numpy(file[f"{split}/item_rows"].astype(np.int64)),
                ),
                torch.from_numpy(file[f"{split}/ranks"]),
            )
            for split in splits
            if f"{split}/ranks" in file.files
        }


def note_test_look(path: Path, prepared: Prepared, settings: RunSettings) -> None:
    """Record that a test split is looked at, by what, and why."""
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": prepared.name,
        "tie_order": settings.order,
        "model": ", ".join(prepared.recipe.rows),
        "seed": settings.seed,
        "config": prepared.recipe.digest(),
        "why": settings.why,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def device_text(device: torch.device) -> str:
    """Name the device a number was made on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a document."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
