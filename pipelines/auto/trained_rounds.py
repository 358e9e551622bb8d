"""The rounds that train models, where the time that is left allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipelines.auto.plan import (
    BLEND_USERS,
    EVALUATED_USERS,
    PLANNED_ENCODER,
    SEQUENCE,
    Planner,
    PlanPart,
    Round,
    bundle_part,
    following,
    without_time,
)
from pipelines.auto.recipe import SequenceRecipe, sequence_recipe
from pipelines.auto.shape import DataShape
from pipelines.config.content import BEHAVIOUR
from pipelines.config.toml import Table, merge, set_value
from pipelines.config.trainings import SequenceTrainingConfig, TwoTowerTrainingConfig
from pipelines.engine.artifacts import plain
from recsys.models import names
from recsys.models.configs import TwoTowerConfig
from recsys.training.optim import ScheduleConfig

BEST = "best bundle"
"""Title of the round that trains."""
SAFETY = 0.7
"""Share of the time that is left which plans fill."""
MIN_SHARE = 0.15
"""Share of the sequence model's passes; fewer are not worth a bundle."""
MAX_MEMBERS = 2
"""The second is worth 2 to 5%, a third and a fourth together as little."""
REFIT_PASSES = 2.0
"""Over all events, that continue the weights of a model of long histories."""
LIMIT = 1.2
"""Times its estimate that a training may take."""
TWO_TOWER_SECONDS = 60.0
"""Least seconds of the two-tower's training; it may take a tenth of the time left."""
ENCODER = "content.encoder"
ENCODING_SHARE, OWN_ENCODING_SHARE = 0.3, 0.5
"""Share of the time left that the encoder of texts may take: the usual one, and one that is set."""
MEANING = 384
"""Columns of MiniLM's vectors; hashed words follow them."""
HASH_SECONDS = 1e-4
"""To hash the words of a text."""


def plan_sequence(planner: Planner) -> None:
    """Plan the round of the sequence model, with texts where items have any."""
    shape, costs = planner.shape, planner.costs
    texts, content = content_part(planner)
    measuring = costs.measuring(6, EVALUATED_USERS, BLEND_USERS) + planner.refit_seconds
    refitted = PlanPart(
        name="models without training",
        what="fitted again",
        why="content similarity is one of them",
        seconds=planner.refit_seconds,
    )
    before = [*(part for part, _ in planner.postponed), *([texts, refitted] if texts else [])]
    room = SAFETY * planner.left - measuring - sum(part.seconds for part in before)
    trained = [trained_in(planner, number, room) for number in range(1, MAX_MEMBERS + 1)]
    whole = [one for one in trained if one.share == 1.0]
    # A first further member is worth 3 to 5%, less than a whole training.
    best = whole[-1] if whole else trained[0]
    part = PlanPart(
        name=SEQUENCE,
        what=best.words(),
        why="histories are long" if shape.has_long_histories else "order tells",
        seconds=best.seconds,
    )
    if planner.is_off(part, "sequence_training.enabled"):
        return
    if best.share < MIN_SHARE:
        needed = replace(part, what="", seconds=best.whole * MIN_SHARE + measuring)
        planner.left_out.append(without_time(needed, planner.left))
        return
    choices = content | sequence_choices(shape, best, content)
    one = later_round(planner, BEST, choices, *before, part, bundle_part(measuring))
    planner.add(replace(one, deferred=(ENCODER,) if is_hashed(content) else ()))


def later_round(planner: Planner, name: str, choices: Table, *parts: PlanPart) -> Round:
    """Add to what the round before does, with what that one left to the next."""
    for _, chosen in planner.postponed:
        choices = choices | chosen
    planner.postponed.clear()
    return following(planner.rounds[-1], name, choices, *parts)


def plan_postponed(planner: Planner) -> None:
    """Plan a round of what the first one left to the next, where no training takes it along."""
    parts, choices = [part for part, _ in planner.postponed], Table()
    texts, content = content_part(planner)
    if texts and set_value(planner.user, ENCODER) and not is_hashed(content):
        # It was set, and left to the round after the first.
        parts, choices = [*parts, texts], content
    measuring = planner.costs.measuring(4, EVALUATED_USERS, BLEND_USERS) + planner.refit_seconds
    if not planner.postponed:
        return
    if measuring + sum(part.seconds for part in parts) > SAFETY * planner.left:
        planner.left_out += [without_time(part, planner.left) for part in parts]
        return
    planner.add(later_round(planner, "fuller bundle", choices, *parts, bundle_part(measuring)))


def sequence_choices(shape: DataShape, best: TrainedIn, content: Table) -> Table:
    """Write a training down, with semantic IDs of texts or else of behaviour."""
    return {
        "evaluation": {"num_resamples": 1000, "max_users": EVALUATED_USERS},
        "blend": {"max_queries": BLEND_USERS},
        names.SEQUENCE.section: plain(best.recipe.model),
        names.SEQUENCE.training: plain(best.training()),
        "semantic_ids": {
            "method": "rq_kmeans",
            "source": "content" if shape.has_text else BEHAVIOUR,
            "content_columns": content.get(names.CONTENT.section, {}).get("columns"),
        },
    }


@dataclass(frozen=True, kw_only=True)
class TrainedIn:
    """A training of the sequence model in the time there is."""

    recipe: SequenceRecipe
    trained: float
    """Seconds of all of its passes, with validations."""
    whole: float
    """The same with the refit."""
    pass_seconds: float
    share: float
    """Share of its passes that are made."""

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
    """Fit a training into the seconds that are left."""
    shape, costs = planner.shape, planner.costs
    recipe = sequence_recipe(
        num_users=shape.num_users,
        num_items=shape.num_items,
        mean_history=shape.mean_length,
        has_text=shape.has_text,
        has_times=shape.has_times,
        num_members=num_members,
    )
    if shape.has_long_histories:
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


def content_part(planner: Planner) -> tuple[PlanPart | None, Table]:
    """Choose the encoder of texts: the one that is set, else the usual one, else words alone.

    An encoder without the time for it is left out, and said to be.
    """
    shape, own = planner.shape, set_value(planner.user, ENCODER)
    if not shape.has_text:
        return None, {}
    timed = planner.encoder
    seconds = planner.costs.encoding() if timed is None else timed.seconds
    number = round(shape.text_share * shape.num_items)
    name = str(own or PLANNED_ENCODER) + (f" ({timed.name}, width {timed.dim})" if timed else "")
    part = PlanPart(
        name="content",
        what=f"{number:,} texts of {shape.text_characters:.0f} characters, {name}",
        why=f"{ENCODER} is set" if own else "items have texts",
        seconds=seconds,
    )
    if seconds <= (OWN_ENCODING_SHARE if own else ENCODING_SHARE) * planner.left:
        return part, encoder_choices(planner.user)
    if all(known.name != part.name for known in planner.left_out):
        planner.left_out.append(without_time(part, planner.left))
    hashed = replace(part, what=f"{number:,} texts, words alone", seconds=HASH_SECONDS * number)
    return hashed, {"content": {"encoder": "hash"}}


def is_hashed(choices: Table) -> bool:
    """Return True if only words are read, to save time."""
    return choices.get("content") == {"encoder": "hash"}


def encoder_choices(user: Table) -> Table:
    """Choose the encoder, and compare items by meaning only if words are appended to it."""
    encoder = set_value(user, ENCODER) or PLANNED_ENCODER
    chosen: Table = {"content": {"encoder": encoder}}
    joined = (set_value(user, f"content.{key}") for key in ("columns", "images"))
    if encoder == PLANNED_ENCODER and not any(joined):
        chosen[names.CONTENT.section] = {"columns": MEANING}
    return chosen


def plan_two_tower(planner: Planner) -> None:
    """Add the two-tower to the round of the sequence model."""
    if not planner.rounds[1:]:
        return
    long = planner.shape.has_long_histories
    settings = TwoTowerConfig(embedding_dim=64, max_history=20 if long else 50)
    training = TwoTowerTrainingConfig(
        batch_size=512 if long else 256,
        max_epochs=5.0 if long else 12.0,
        patience=2 if long else 4,
        max_seconds=round(max(TWO_TOWER_SECONDS, 0.1 * planner.left), 1),
        schedule=ScheduleConfig(learning_rate=3e-3 if long else 2e-3),
    )
    seconds = planner.costs.two_tower(settings, training)
    part = PlanPart(
        name="two-tower",
        what=f"width {settings.embedding_dim}, {training.max_epochs:.0f} passes, an index",
        why="a further view, and vectors for FAISS",
        seconds=seconds,
    )
    if planner.is_off(part, f"{names.TWO_TOWER.training}.enabled"):
        return
    merging = planner.costs.measuring(1, EVALUATED_USERS, BLEND_USERS)
    if seconds + merging > planner.left / 2:
        part = replace(part, seconds=seconds + merging)
        planner.left_out.append(without_time(part, planner.left))
        return
    choices: Table = {
        names.TWO_TOWER.section: plain(settings),
        names.TWO_TOWER.training: plain(training),
    }
    # In the round before: a round of its own would refit the sequence model once more.
    before = planner.rounds.pop()
    *parts, ends = before.parts
    ends = replace(ends, seconds=ends.seconds + merging)
    merged = merge(before.choices, choices)
    planner.rounds.append(replace(before, choices=merged, parts=(*parts, part, ends)))
    planner.left -= seconds + merging


def plan_late(planner: Planner) -> None:
    """Leave out models that do not pay for their time, with the key that trains them."""
    for name, key in (("generation", "generative_training"), ("ranker", "ranker_training")):
        if set_value(planner.user, f"{key}.enabled") is None:
            planner.left_out.append(
                PlanPart(
                    name=name,
                    what="",
                    why=f"improves lists little for its time; {key}.enabled = true trains it",
                    seconds=0.0,
                )
            )
