"""Run the cold-start protocol with one seed: fit on warm items, append the cold ones, measure.

Axes: N item rows, U queries, k list length.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative import GenerativeModel
from recsys.models.sequence import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.cold_start import (
    ColdStartConfig,
    ColdWorld,
    cold_question,
    cold_world,
    with_best_warm,
)
from recsys.reproduction.fitting import FITTERS, Experiment, Fitted
from recsys.reproduction.generation import GeneratedSource, codes_of, grown_model
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import (
    Question,
    Ranked,
    ScoredSource,
    Source,
    metrics_of,
    rank_all,
)
from recsys.reproduction.recipe import BLENDS, SOURCES, Recipe
from recsys.reproduction.run import (
    LEDGER,
    RESULT,
    RunSettings,
    blended_in_parts,
    described,
    device_named,
    learned,
    note_test_look,
    read_result,
    write_json,
)

SETTINGS = ("cold alone", "told", "not told", "warm")
"""``warm`` is the same system as ``not told``, on the warm items' last events: what it costs."""
SPLITS = ("validation", "test")
Found = dict[tuple[str, str], Ranked]
"""By setting and split."""


def run_cold(
    prepared: Prepared,
    directory: Path,
    settings: RunSettings,
    config: ColdStartConfig | None = None,
) -> dict[str, Any]:
    """Measure every source and the blends on cold items, or read what an earlier call left."""
    config = config or ColdStartConfig()
    folder = directory / f"cold-{settings.name}"
    done = read_result(folder / RESULT, prepared)
    if done is not None and set(settings.splits) <= set(done["splits"]):
        return done
    folder.mkdir(parents=True, exist_ok=True)
    if "test" in settings.splits:
        note_test_look(directory / LEDGER, prepared, settings)
    begin = time.perf_counter()
    world = cold_world(prepared, settings.order, settings.seed, config)
    experiment = Experiment(
        prepared=world.warm,
        sequences=world.warm.order(settings.order),
        seed=settings.seed,
        device=device_named(settings.device),
        checkpoints=folder / "checkpoints",
        shows_progress=settings.shows_progress,
        keeps_ids=True,
    )
    asked = Asked(world, experiment, settings)
    sources = {
        name: grown_source(name, FITTERS[name](experiment), experiment, world)
        for name in prepared.recipe.models()
    }
    found = {name: asked.full_catalogue(source) for name, source in sources.items()}
    anchor = found["sequence" if "sequence" in found else next(iter(found))]
    questions = asked.questions(anchor, config)
    for name, source in sources.items():
        found[name] |= {key: asked.rank(source, questions[key]) for key in questions}
    everything = {**asked.full_questions(), **questions}
    for name in BLENDS:
        if name in prepared.recipe.rows:
            parts = {part: found[part] for part in prepared.recipe.parts(name)}
            found[name] = blended(parts, everything, experiment)
    result = {
        **described(prepared, settings),
        "seconds": round(time.perf_counter() - begin, 1),
        "num_cold": {split: int(rows.sum()) for split, rows in world.cold.items()},
        "num_targets": {split: len(users) for split, users in world.users.items()},
        "rows": {
            name: table(found[name], everything, settings)
            for name in found
            if name in prepared.recipe.rows
        },
    }
    write_json(folder / RESULT, result)
    return result


class Asked(NamedTuple):
    """Everything that a source is asked."""

    world: ColdWorld
    experiment: Experiment
    settings: RunSettings

    def rank(self, source: Source, question: Question) -> Ranked:
        recipe = self.experiment.recipe
        k = min(recipe.num_candidates, question.num_item_rows - 1)
        return rank_all(source, question, k, self.experiment.device)

    def full_questions(self) -> dict[tuple[str, str], Question]:
        """Ask the full catalogue for cold items and, beside them, for each user's last events."""
        asked: dict[tuple[str, str], Question] = {}
        for split in self.settings.splits:
            asked["not told", split] = cold_question(self.world, split, told=False)
            warm = self.experiment.question(split)
            asked["warm", split] = warm._replace(num_item_rows=self.world.grown.num_item_rows)
        return asked

    def full_catalogue(self, source: Source) -> Found:
        return {key: self.rank(source, asked) for key, asked in self.full_questions().items()}

    def questions(self, anchor: Found, config: ColdStartConfig) -> dict[tuple[str, str], Question]:
        """Ask who is told: cold items alone, and beside the anchor's best warm ones."""
        cold = torch.stack(list(self.world.cold.values())).any(0)
        asked: dict[tuple[str, str], Question] = {}
        for split in self.settings.splits:
            lists = anchor["not told", split].lists.item_rows
            best = with_best_warm(cold, lists, config.num_warm)
            asked["cold alone", split] = cold_question(self.world, split, told=True)
            asked["told", split] = cold_question(self.world, split, told=True, beside=best)
        return asked


def grown_source(name: str, fitted: Fitted, experiment: Experiment, world: ColdWorld) -> Source:
    """Let a model that was fitted on warm items meet the grown catalogue."""
    catalogue, device = world.grown.catalogue, experiment.device
    if name == "content":
        return ScoredSource(grown_content(experiment, world).to(device).score)
    if fitted.model is None:
        return fitted.source
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if name == "generative":
            codes = codes_of(world.grown)
            generative = cast("GenerativeModel", fitted.model).cpu()
            model = grown_model(generative, folder, catalogue, codes).to(device)
            return GeneratedSource(model, codes, experiment.recipe.beam_width)
        kind = SequenceModel if name == "sequence" else TwoTower
        cast("SequenceModel | TwoTower", fitted.model).cpu().save(folder)
        return ScoredSource(kind.load(folder, catalogue).to(device).score)


def grown_content(experiment: Experiment, world: ColdWorld) -> ContentSimilarity:
    """Let what was learned of the warm items' content stand for the cold ones too."""
    warm = ContentSimilarity(experiment.recipe.content, world.warm.catalogue.content)
    with tempfile.TemporaryDirectory() as place:
        warm.save(Path(place))
        return ContentSimilarity.load(Path(place), world.grown.catalogue.content)


def blended(
    found: Mapping[str, Found],
    questions: Mapping[tuple[str, str], Question],
    experiment: Experiment,
) -> Found:
    """Learn each setting's weights on validation and merge its lists.

    What is not told which items are cold learns on cold and warm targets alike, in equal numbers
    at most, and sees no count of events, which would tell.
    """
    recipe = untold(experiment.recipe)
    merged: Found = {}
    for setting in SETTINGS:
        learning = [("not told", "validation"), ("warm", "validation")]
        if setting in ("cold alone", "told"):
            learning = [(setting, "validation")]
        parts = [learnable(found, questions, key) for key in learning]
        size = min(len(part.lengths) for part in parts)
        parts = [part.first(size) for part in parts]
        counts = torch.zeros(next(iter(questions.values())).num_item_rows, dtype=torch.int64)
        lists = {name: joined([part.lists[name] for part in parts]) for name in parts[0].lists}
        targets = Jagged.one_each(torch.cat([part.targets for part in parts]))
        lengths = torch.cat([part.lengths for part in parts])
        device = experiment.device
        blend = learned(lists, targets, lengths, counts, recipe.blend, device)
        for key, question in questions.items():
            if key[0] == setting:
                lengths = question.history_lengths()
                top = blended_in_parts(blend, lists_of(found, key), lengths, counts, device)
                ranks = list_ranks(top.item_rows, question.held_out.targets).values
                merged[key] = Ranked(top, ranks)
    return merged


def untold(recipe: Recipe) -> Recipe:
    """Take away what tells new items from old."""
    return replace(recipe, blend=replace(recipe.blend, item_bounds=()))


class Learnable(NamedTuple):
    """Lists with their targets, one each."""

    lists: Mapping[str, TopK]
    targets: Tensor
    """[U]"""
    lengths: Tensor
    """[U]"""

    def first(self, size: int) -> Learnable:
        """Keep so many queries, evenly spaced."""
        rows = torch.linspace(0, len(self.targets) - 1, size).long()
        lists = {
            name: TopK(top.scores[rows], top.item_rows[rows]) for name, top in self.lists.items()
        }
        return Learnable(lists, self.targets[rows], self.lengths[rows])


def learnable(
    found: Mapping[str, Found],
    questions: Mapping[tuple[str, str], Question],
    key: tuple[str, str],
) -> Learnable:
    """Gather one setting's lists and targets."""
    question = questions[key]
    return Learnable(
        lists_of(found, key), question.held_out.targets.values, question.history_lengths()
    )


def lists_of(found: Mapping[str, Found], key: tuple[str, str]) -> dict[str, TopK]:
    """Take every source's lists, by its name in a blend."""
    return {SOURCES.get(name, name): part[key].lists for name, part in found.items()}


def joined(parts: list[TopK]) -> TopK:
    """Put lists of equal length below each other."""
    return TopK(
        torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts])
    )


def table(
    found: Found, questions: Mapping[tuple[str, str], Question], settings: RunSettings
) -> dict[str, dict[str, float]]:
    """Lay metrics out by split, each named ``<setting>/<metric>``."""
    return {
        split: {
            f"{setting}/{name}": value
            for setting in SETTINGS
            for name, value in metrics_of(
                found[setting, split].ranks, questions[setting, split].held_out.targets
            ).items()
        }
        for split in settings.splits
    }
