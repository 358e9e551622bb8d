"""Run the cold-start protocol with one seed: fit on warm items, append the cold ones, measure.

Axes: N item rows, U queries, k list length.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.cold_blend import Found, blended
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
from recsys.reproduction.recipe import BLENDS
from recsys.reproduction.run import (
    LEDGER,
    RESULT,
    RunSettings,
    described,
    device_named,
    note_test_look,
    read_result,
    write_json,
)

SETTINGS = (
    "cold alone",
    "told",
    "told warm",
    "not told",
    "warm",
    "counted",
    "counted warm",
)
"""Each system stands beside itself on the warm items' last events, which is what it costs:
``told warm``, ``warm`` (of ``not told``) and ``counted warm``. Blends alone read counts."""
ASKED_AS = {"counted": "not told", "counted warm": "warm"}
"""Settings that ask what another one asks."""


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
        everything = self.full_questions()
        for split in self.settings.splits:
            best = {
                key: with_best_warm(cold, anchor[key, split].lists.item_rows, config.num_warm)
                for key in ("not told", "warm")
            }
            asked["cold alone", split] = cold_question(self.world, split, told=True)
            asked["told", split] = cold_question(
                self.world, split, told=True, beside=best["not told"]
            )
            asked["told warm", split] = everything["warm", split]._replace(
                eligible=self.world.cold[split], beside=best["warm"]
            )
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


def table(
    found: Found, questions: Mapping[tuple[str, str], Question], settings: RunSettings
) -> dict[str, dict[str, float]]:
    """Lay metrics out by split, each named ``<setting>/<metric>``."""
    return {
        split: {
            f"{setting}/{name}": value
            for setting in SETTINGS
            if (setting, split) in found
            for name, value in metrics_of(
                found[setting, split].ranks,
                questions[ASKED_AS.get(setting, setting), split].held_out.targets,
            ).items()
        }
        for split in settings.splits
    }
