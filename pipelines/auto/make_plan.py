"""Choose what an automatic run trains for its data, its machine and the time that is left.

The rules and what they were chosen by: docs/decisions/automatic-preset.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from features.schema import NEGATIVE_TYPES
from pipelines.auto.first_round import TRAINED, plan_first
from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.plan import (
    BLENDED_FOR_EACH,
    CONTENT,
    EVALUATED_USERS,
    PLANNED_ENCODER,
    SEQUENCE,
    Costs,
    Plan,
    Planner,
    PlanPart,
)
from pipelines.auto.shape import (
    MIN_HELD_OUT,
    MIN_TRAINED_EVENTS,
    DataShape,
    SequenceRecipe,
    enough,
    sequence_recipe,
)
from pipelines.config.content import BEHAVIOUR
from pipelines.config.toml import Table, merge, set_value
from pipelines.config.trainings import SequenceTrainingConfig, TwoTowerTrainingConfig
from pipelines.engine.artifacts import plain
from pipelines.engine.memory import GIB
from recsys.models import names
from recsys.models.configs import TwoTowerConfig
from recsys.training.passes import ScheduleConfig

BEST, FULLER = "best bundle", "fuller bundle"
MEASURED: Table = {
    "evaluation": {"max_users": EVALUATED_USERS},
    "blend": {"max_queries": BLENDED_FOR_EACH * EVALUATED_USERS},
}
"""Choices by which later rounds are measured."""
SAFETY = 0.7
"""Share of the time that is left which plans fill."""
HOPE = 8.0
"""Times the passes that are estimated to fit, which a training begins with; its limit cuts them."""
MIN_SHARE = 0.04
"""Share of the sequence model's passes; fewer are not worth a bundle."""
MAX_MEMBERS = 2
"""The second is worth 2 to 5%, a third and a fourth together as little."""
REFIT_PASSES = 2.0
"""Over all events, that continue the weights of a model of long histories."""
TRAINED_SHARE = 0.8
"""Share of the events before the moment after which models are judged."""
LIMIT = 1.2
"""Times its estimate that a training may take."""
TWO_TOWER_SECONDS = 60.0
"""Least seconds of the two-tower's training; it may take a tenth of the time left."""
ENCODER = "content.encoder"
ENCODING_SHARE, OWN_ENCODING_SHARE = 0.3, 0.5
"""Share of the time left that the encoder of texts may take: the usual one, and one that is set."""
MEANING, WORDS = 384, 256
"""Columns of MiniLM's vectors, and of the words that follow them."""
HASH_SECONDS = 1e-4
"""To hash the words of a text."""
HASHED: Table = {"content": {"encoder": "hash"}}
"""Choices that read words alone, to save time."""
DEFERRED = (
    ENCODER,
    "search.enabled",
    "semantic_ids.method",
    *(f"{name}.enabled" for name in TRAINED),
)
"""Keys that the first round leaves to later ones where the configuration sets them."""
MIN_TRAINED_SECONDS = 15.0
"""Seconds left below which no training is considered."""


def make_plan(
    shape: DataShape,
    machine: Machine,
    user: Table,
    left: float,
    encoder: TimedEncoder | None = None,
    *,
    is_served: bool = False,
) -> Plan:
    """Plan the rounds of a run for the keys that the user sets and the seconds that are left."""
    if set_value(user, ENCODER) == "none":
        shape = replace(shape, text_share=0.0, text_characters=0.0)
    planner = Planner(shape, Costs(shape, machine), user, left, encoder, is_served)
    check_memory(planner)
    note_kinds(planner)
    plan_first(planner)
    if planner.left > MIN_TRAINED_SECONDS and can_train(planner):
        plan_sequence(planner)
        plan_two_tower(planner)
    plan_postponed(planner)
    defer(planner)
    return planner.plan()


def check_memory(planner: Planner) -> None:
    """Refuse a machine that no plan fits, before any work."""
    needed, free = planner.costs.bytes_needed(num_sources=4), planner.machine.memory_bytes
    if needed > free:
        raise ValueError(
            f"{free / GIB:.1f} GiB of memory are free and {needed / GIB:.1f} GiB are needed for "
            f"{planner.shape.num_events:,} events; free some, take a larger machine, or keep fewer "
            "events (filters.max_user_events, filters.min_item_events)"
        )


def note_kinds(planner: Planner) -> None:
    """Note what was done, if that was not always the same, and what lists are for."""
    kinds = planner.shape.kinds
    if len(kinds) < 2:
        return
    counts = ", ".join(f"{kind} {number:,}" for kind, number in kinds.items())
    targets = set_value(planner.user, "evaluation.target_types")
    chosen = ", ".join(targets) if targets else "all of them"
    note = f"Kinds of events: {counts}. Lists are for {chosen} (evaluation.target_types)"
    own = set_value(planner.user, "filters.negative_types")
    if said_no := sorted(kinds.keys() & set(NEGATIVE_TYPES if own is None else own)):
        note += f"; {', '.join(said_no)} count for no item (filters.negative_types)"
    planner.notes.append(note)


def can_train(planner: Planner) -> bool:
    """Return ``enough``, and note why not."""
    shape = planner.shape
    if enough(shape):
        return True
    planner.notes.append(
        f"Nothing is trained: {shape.num_events:,} events of which {shape.num_held_out} users have "
        f"some to hold out; from {MIN_TRAINED_EVENTS} events and {MIN_HELD_OUT} such users on, "
        "models are"
    )
    return False


def plan_sequence(planner: Planner) -> None:
    """Plan the round of the sequence model, with texts where items have any."""
    shape = planner.shape
    texts, content = content_part(planner)
    ends = planner.measuring(6) + planner.refit_seconds
    before = [part for part, _ in planner.postponed]
    if texts:
        why, seconds = "content similarity is one of them", planner.refit_seconds
        before += [texts, PlanPart("models without training", "fitted again", why, seconds)]
    room = SAFETY * planner.left - ends - sum(part.seconds for part in before)
    trained = [trained_in(planner, number, room) for number in range(1, MAX_MEMBERS + 1)]
    # A first further member is worth 3 to 5%, less than a whole training.
    best = next((one for one in reversed(trained) if one.share == 1.0), trained[0])
    why = "histories are long" if shape.has_long_histories else "order tells"
    part = PlanPart(SEQUENCE, best.words(), why, best.share * best.whole)
    if planner.is_off(part, "sequence_training.enabled"):
        return
    if best.share < MIN_SHARE:
        planner.leave_out(replace(part, what="", seconds=best.whole * MIN_SHARE + ends))
        return
    choices = (
        content
        | MEASURED
        | {
            names.SEQUENCE.section: plain(best.recipe.model),
            names.SEQUENCE.training: plain(best.training()),
            "semantic_ids": {
                "method": "rq_kmeans",
                "source": "content" if shape.has_text else BEHAVIOUR,
                "content_columns": MEANING if names.CONTENT.section in content else None,
            },
        }
    )
    deferred = [ENCODER] if content == HASHED else []
    planner.add_round(BEST, choices, [*before, part], ends, *deferred)


def plan_postponed(planner: Planner) -> None:
    """Plan a round of texts and of what the first one left, if no training takes them along."""
    parts, choices = [part for part, _ in planner.postponed], Table()
    texts, content = content_part(planner)
    if texts and content != HASHED and enough(planner.shape) and not planner.rounds[1:]:
        parts, choices = [*parts, texts], content
    ends = planner.measuring(4) + planner.refit_seconds
    if not parts:
        return
    if ends + sum(part.seconds for part in parts) <= SAFETY * planner.left:
        planner.add_round(FULLER, choices, parts, ends)
        return
    for part in parts:
        planner.leave_out(part)


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

    def training(self) -> SequenceTrainingConfig:
        """Limit the seconds, and hope for more passes in them than are estimated."""
        training, share = self.recipe.training, min(1.0, HOPE * self.share)
        refit = training.refit_epochs
        return replace(
            training,
            max_epochs=round(share * training.max_epochs, 2),
            epochs_per_evaluation=round(share * training.epochs_per_evaluation, 2),
            refit_epochs=None if refit is None else round(self.share * refit, 2),
            max_seconds=round(max(10.0, LIMIT * self.share * self.trained), 1),
        )

    def words(self) -> str:
        """Describe the members and passes."""
        model, passes = self.recipe.model, self.share * self.recipe.training.max_epochs
        members = f"{model.num_members} members of " if model.num_members > 1 else ""
        width = model.embedding_dim // model.num_members
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
    share = TRAINED_SHARE if shape.by_time else 1.0
    trained = share * passes * one + costs.validations(recipe.training)
    whole = trained + (recipe.training.refit_epochs or passes) * one
    share = min(1.0, max(0.0, room / whole))
    return TrainedIn(recipe=recipe, trained=trained, whole=whole, pass_seconds=one, share=share)


def content_part(planner: Planner) -> tuple[PlanPart | None, Table]:
    """Choose the encoder of texts: the one that is set, else the usual one, else words alone.

    An encoder without the time for it is left out, and said to be.
    """
    shape, own, timed = planner.shape, set_value(planner.user, ENCODER), planner.encoder
    if not shape.has_text:
        return None, {}
    number = round(shape.text_share * shape.num_items)
    name = str(own or PLANNED_ENCODER) + (f" ({timed.name}, width {timed.dim})" if timed else "")
    part = PlanPart(
        CONTENT,
        f"{number:,} texts of {shape.text_characters:.0f} characters, {name}",
        f"{ENCODER} is set" if own else "items have texts",
        planner.costs.encoding() if timed is None else timed.seconds,
    )
    if part.seconds <= (OWN_ENCODING_SHARE if own else ENCODING_SHARE) * planner.left:
        chosen: Table = {"content": {"encoder": own or PLANNED_ENCODER}}
        joined = set_value(planner.user, "content.columns")
        if (own or PLANNED_ENCODER) == PLANNED_ENCODER and not joined:
            # Items are compared by meaning, or with the words that are appended.
            chosen[names.CONTENT.section] = {"columns": [MEANING, MEANING + WORDS]}
        return part, chosen
    if all(known.name != part.name for known in planner.left_out):
        planner.leave_out(part)
    what = f"{number:,} texts, words alone"
    return replace(part, what=what, seconds=HASH_SECONDS * number), HASHED


def plan_two_tower(planner: Planner) -> None:
    """Add the two-tower to the round of the sequence model, or make one without that."""
    long = planner.shape.has_long_histories
    settings = TwoTowerConfig(embedding_dim=64, max_history=20 if long else 50)
    training = TwoTowerTrainingConfig(
        batch_size=512 if long else 256,
        max_epochs=5.0 if long else 12.0,
        patience=2 if long else 4,
        max_seconds=round(max(TWO_TOWER_SECONDS, 0.1 * planner.left), 1),
        schedule=ScheduleConfig(learning_rate=3e-3 if long else 2e-3),
    )
    what = f"width {settings.embedding_dim}, {training.max_epochs:.0f} passes, an index"
    why, seconds = (
        "a further view, and vectors for FAISS",
        planner.costs.two_tower(settings, training),
    )
    part, merging = PlanPart("two-tower", what, why, seconds), planner.measuring(1)
    if planner.is_off(part, f"{names.TWO_TOWER.training}.enabled"):
        return
    if seconds + merging > planner.left / 2:
        planner.leave_out(part, merging)
        return
    choices = {names.TWO_TOWER.section: plain(settings), names.TWO_TOWER.training: plain(training)}
    if not planner.rounds[1:]:
        last = planner.measuring(4) + planner.refit_seconds
        before = [known for known, _ in planner.postponed]
        texts, content = content_part(planner)
        if texts and content != HASHED:
            before, choices = [*before, texts], choices | content
        planner.add_round(BEST, choices | MEASURED, [*before, part], last)
        return
    # In the round before: a round of its own would refit the sequence model once more.
    one = planner.rounds[-1]
    *parts, ends = one.parts
    parts = [*parts, part, replace(ends, seconds=ends.seconds + merging)]
    planner.rounds[-1] = replace(one, choices=merge(one.choices, choices), parts=tuple(parts))
    planner.left -= seconds + merging


def defer(planner: Planner) -> None:
    """Leave what the configuration switches on and takes long to the rounds after the first.

    Where there are none, only an encoder without the time for it is left out.
    """
    own = [key for key in DEFERRED if set_value(planner.user, key) not in (None, False)]
    if len(planner.rounds) == 1:
        texts, choices = content_part(planner)
        own = [ENCODER] if ENCODER in own and texts and choices == HASHED else []
    planner.rounds[0] = replace(planner.rounds[0], deferred=tuple(own))
