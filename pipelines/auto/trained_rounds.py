"""The rounds that train models, where the time that is left allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipelines.auto.plan import Part, bundle_part, following, without_time
from pipelines.auto.planner import BLEND_USERS, EVALUATED_USERS, Planner, set_value
from pipelines.auto.shape import DataShape
from pipelines.config.run import SequenceTrainingConfig, TwoTowerTrainingConfig
from pipelines.config.toml import Table, merge, plain
from pipelines.presets import sequence_recipe as recipes
from pipelines.presets.amazon import MEANING
from recsys.models.two_tower import TwoTowerConfig
from recsys.training.optim import ScheduleConfig

SAFETY = 0.7
"""Share of the time that is left which plans fill."""
MIN_SHARE = 0.15
"""Of the sequence model's passes; fewer are not worth a bundle."""
MAX_MEMBERS = 2
"""The second is worth 2 to 5%, a third and a fourth together as little."""
REFIT_PASSES = 2.0
"""Over all events, that continue the weights of a model of long histories."""
LIMIT = 1.2
"""Times its estimate that a training may take."""
TWO_TOWER_SECONDS = 60.0
"""Of the two-tower's training at least; it may take a tenth of the time left."""
ENCODING_SHARE = 0.2
"""Of the time left, that the encoder of texts may take."""
HASH_SECONDS = 1e-4
"""To hash the words of a text."""


def plan_sequence(planner: Planner) -> None:
    """Plan the round of the sequence model, with texts where items have any."""
    shape, costs = planner.shape, planner.costs
    texts, content = content_part(planner)
    measuring = costs.measuring(6, EVALUATED_USERS, BLEND_USERS)
    room = SAFETY * planner.left - measuring - (texts.seconds if texts else 0.0)
    trained = [trained_in(planner, number, room) for number in range(1, MAX_MEMBERS + 1)]
    whole = [one for one in trained if one.share == 1.0]
    # A first further member is worth 3 to 5%, less than a whole training.
    best = whole[-1] if whole else trained[0]
    part = Part(
        name="sequence model",
        what=best.words(),
        why="histories are long" if shape.mean_length >= recipes.LONG_HISTORY else "order tells",
        seconds=best.seconds,
    )
    if planner.is_off(part, "sequence_training.enabled"):
        return
    if best.share < MIN_SHARE:
        needed = replace(part, what="", seconds=best.whole * MIN_SHARE + measuring)
        planner.left_out.append(without_time(needed, planner.left))
        return
    choices = content | sequence_choices(shape, best, content)
    parts = [texts, part] if texts else [part]
    ends = bundle_part(measuring)
    planner.add(following(planner.rounds[-1], "best bundle", choices, *parts, ends))


def sequence_choices(shape: DataShape, best: TrainedIn, content: Table) -> Table:
    """Write a training down, with semantic IDs of texts or else of behaviour."""
    return {
        "evaluation": {"num_resamples": 1000, "max_users": EVALUATED_USERS},
        "blend": {"max_queries": BLEND_USERS},
        "sequence": plain(best.recipe.model),
        "sequence_training": plain(best.training()),
        "semantic_ids": {
            "method": "rq_kmeans",
            "source": "content" if shape.has_text else "sequence",
            "content_columns": content.get("content_similarity", {}).get("columns"),
        },
    }


@dataclass(frozen=True, kw_only=True)
class TrainedIn:
    """A training of the sequence model in the time there is."""

    recipe: recipes.SequenceRecipe
    trained: float
    """Seconds of all of its passes, with validations."""
    whole: float
    """The same with the refit."""
    pass_seconds: float
    share: float
    """Of its passes, that are made."""

    @property
    def seconds(self) -> float:
        return self.share * self.whole

    def training(self) -> SequenceTrainingConfig:
        """Shorten the passes, and limit the seconds in case the estimate is wrong."""
        training = self.recipe.training
        return replace(
            training,
            max_epochs=round(self.share * training.max_epochs, 2),
            epochs_per_evaluation=round(self.share * training.epochs_per_evaluation, 2),
            max_seconds=round(max(10.0, LIMIT * self.share * self.trained), 1),
        )

    def words(self) -> str:
        model = self.recipe.model
        members = f"{model.num_members} members of " if model.num_members > 1 else ""
        width = model.embedding_dim // model.num_members
        passes = self.share * self.recipe.training.max_epochs
        return f"{members}width {width}, {passes:.0f} passes of {self.pass_seconds:.1f} s, a refit"


def trained_in(planner: Planner, num_members: int, room: float) -> TrainedIn:
    """Say how much of a training fits into so many seconds."""
    shape, costs = planner.shape, planner.costs
    known = recipes.DataShape(
        num_users=max(1, shape.num_users),
        num_items=max(1, shape.num_items),
        num_events=max(1, shape.num_events),
        has_text=shape.has_text,
        has_times=shape.has_times,
    )
    recipe = recipes.sequence_recipe(known, num_members=num_members)
    if known.has_long_histories:
        # Trained weights that are continued are as good there.
        recipe = recipe._replace(training=replace(recipe.training, refit_epochs=REFIT_PASSES))
    one, passes = costs.sequence_pass(recipe.model), recipe.training.max_epochs
    refit = recipe.training.refit_epochs or passes
    trained = passes * one + costs.validations(recipe.training)
    whole = trained + refit * one
    return TrainedIn(
        recipe=recipe,
        trained=trained,
        whole=whole,
        pass_seconds=one,
        share=min(1.0, max(0.0, room / whole)),
    )


def content_part(planner: Planner) -> tuple[Part | None, Table]:
    """Choose the encoder of texts."""
    shape = planner.shape
    if not shape.has_text:
        return None, {}
    seconds = planner.costs.encoding()
    number = round(shape.text_share * shape.num_items)
    what = f"{number:,} texts of {shape.text_characters:.0f} characters"
    if seconds <= ENCODING_SHARE * planner.left:
        part = Part(
            name="content",
            what=f"{what}, MiniLM and words",
            why="items have texts",
            seconds=seconds,
        )
        return part, {
            "content": {"encoder": "minilm+words"},
            "content_similarity": {"columns": MEANING},
        }
    part = Part(
        name="content",
        what=f"{what}, words alone",
        why=f"MiniLM needs {seconds:,.0f} s",
        seconds=HASH_SECONDS * number,
    )
    return part, {"content": {"encoder": "hash"}}


def plan_two_tower(planner: Planner) -> None:
    """Add the two-tower to the round of the sequence model."""
    if not planner.rounds[1:]:
        return
    long = planner.shape.mean_length >= recipes.LONG_HISTORY
    settings = TwoTowerConfig(embedding_dim=64, max_history=20 if long else 50)
    training = TwoTowerTrainingConfig(
        batch_size=512 if long else 256,
        max_epochs=5.0 if long else 12.0,
        patience=2 if long else 4,
        max_seconds=round(max(TWO_TOWER_SECONDS, 0.1 * planner.left), 1),
        schedule=ScheduleConfig(learning_rate=3e-3 if long else 2e-3),
    )
    seconds = planner.costs.two_tower(settings, training)
    part = Part(
        name="two-tower",
        what=f"width {settings.embedding_dim}, {training.max_epochs:.0f} passes, an index",
        why="a further view, and vectors for FAISS",
        seconds=seconds,
    )
    if planner.is_off(part, "training.enabled"):
        return
    merging = planner.costs.measuring(1, EVALUATED_USERS, BLEND_USERS)
    if seconds + merging > planner.left / 2:
        part = replace(part, seconds=seconds + merging)
        planner.left_out.append(without_time(part, planner.left))
        return
    choices: Table = {"two_tower": plain(settings), "training": plain(training)}
    # In the round before: a round of its own would refit the sequence model once more.
    before = planner.rounds.pop()
    *parts, ends = before.parts
    ends = replace(ends, seconds=ends.seconds + merging)
    merged = merge(before.choices, choices)
    planner.rounds.append(replace(before, choices=merged, parts=(*parts, part, ends)))
    planner.left -= seconds + merging


def plan_late(planner: Planner) -> None:
    """Leave out what has not paid for its time at such budgets, and say how to have it."""
    for name, key in (("generation", "generative_training"), ("ranker", "ranker_training")):
        if set_value(planner.user, f"{key}.enabled") is None:
            planner.left_out.append(
                Part(
                    name=name,
                    what="",
                    why=f"improves lists little for its time; {key}.enabled = true trains it",
                    seconds=0.0,
                )
            )
