"""Choose what an automatic run trains for its data, its machine and the time that is left.

The rules and what they were chosen by: docs/decisions/automatic-preset.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.auto.costs import Costs
from pipelines.auto.machine import GIB, Machine
from pipelines.auto.plan import FIRST, Part, Plan, Round, following, without_time
from pipelines.auto.shape import DataShape
from pipelines.config.run import SequenceTrainingConfig, TwoTowerTrainingConfig
from pipelines.config.toml import Table, plain
from pipelines.presets import sequence_recipe as recipes
from recsys.models.two_tower import TwoTowerConfig
from recsys.training.optim import ScheduleConfig

REPEATS_FROM = 0.1
"""Share of held-out events that repeat an item, from which on lists may repeat the history."""
MIN_HELD_OUT = 30
"""Users with a held-out event, below which nothing can be chosen by validation."""
MIN_TRAINED_EVENTS = 500
"""Events below which a trained model has nothing to learn from."""
POPULAR_ONLY = 15.0
"""Seconds below which only popularity and item-to-item are fitted."""
HASTY_USERS = 200
"""Users that are measured then."""
SAFETY = 0.85
"""Share of the time that is left which plans fill."""
FIRST_SECONDS = 24.0
"""What EASE may take in the first round."""
EVALUATED_USERS = 2_000
"""Users whose held-out events are measured, at most: 0.003 of N@10 is then one standard error."""
BLENDED_FOR_EACH = 2
"""Users that the blend's weights are learned from, for each that is measured."""
BLEND_USERS = BLENDED_FOR_EACH * EVALUATED_USERS
MEASURED_SHARE = 0.3
"""Of the time left, that blending and measuring may take in the first round."""
MEASURED_SECONDS = 18.0
NUM_FIRST = 4
"""Sources of the first round."""
MIN_TRAINED_SECONDS = 15.0
"""Seconds left below which no training is considered."""
FEW_ITEMS = 4_000
"""Up to which validation chooses among settings of EASE and item-kNN; more take the usual ones."""
MIN_EXACT_ITEMS = 500
"""Of EASE; fewer are not worth it."""
MEMORY_SHARE = 0.5
"""Of the free memory, that one part may take."""
MIN_SHARE = 0.3
"""Of the sequence model's passes; fewer are not worth a bundle."""
MAX_MEMBERS = 3
REFIT_PASSES = 2.0
"""Over all events, that continue the weights of a model of long histories."""
LIMIT = 1.2
"""Times its estimate that a training may take."""
TWO_TOWER_SECONDS = 60.0
ENCODING_SHARE = 0.2
"""Of the time left, that the encoder of texts may take."""
HASH_SECONDS = 1e-4
"""To hash the words of a text."""
MEANING = 384
"""Columns of MiniLM's vectors; hashed words follow them."""


@dataclass
class Planner:
    """Collects rounds while time is left."""

    shape: DataShape
    costs: Costs
    user: Table
    """What the configuration sets itself, by section; it wins over any choice."""
    left: float
    """Seconds to the end of the budget."""
    rounds: list[Round] = field(default_factory=list)
    left_out: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        return self.costs.machine

    def add(self, one: Round) -> None:
        self.rounds.append(one)
        self.left -= one.seconds

    def is_off(self, part: Part, key: str) -> bool:
        """Whether the configuration says no to a part, which is then listed as left out."""
        if set_value(self.user, key) is not False:
            return False
        self.left_out.append(Part(**{**vars(part), "why": f"{key} = false is set"}))
        return True

    def plan(self) -> Plan:
        return Plan(
            rounds=tuple(self.rounds), left_out=tuple(self.left_out), notes=tuple(self.notes)
        )


def set_value(table: Table, key: str) -> Any:
    """Look a dotted key up; None where it is not set."""
    found: Any = table
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def make_plan(shape: DataShape, machine: Machine, user: Table, left: float) -> Plan:
    """Plan the rounds of a run.

    Args:
        shape: Of the data.
        machine: That trains.
        user: What the configuration sets itself.
        left: Seconds to the end of the budget.

    Raises:
        ValueError: The machine has too little memory for any plan.
    """
    planner = Planner(shape, Costs(shape, machine), user, left)
    check_memory(planner)
    plan_first(planner)
    if planner.left > MIN_TRAINED_SECONDS and can_train(planner):
        plan_sequence(planner)
        plan_two_tower(planner)
        plan_late(planner)
    return planner.plan()


def check_memory(planner: Planner) -> None:
    """Refuse a machine that no plan fits, before any work.

    Raises:
        ValueError: Names what is free and what is needed.
    """
    needed, free = planner.costs.bytes_needed(num_sources=4), planner.machine.memory_bytes
    if needed > free:
        raise ValueError(
            f"{free / GIB:.1f} GiB of memory are free and {needed / GIB:.1f} GiB are needed for "
            f"{planner.shape.num_events:,} events; free some, take a larger machine, or keep fewer "
            "events (filters.max_user_events, filters.min_item_events)"
        )


def can_train(planner: Planner) -> bool:
    """Whether there is anything that a trained model could learn from; notes why not."""
    shape = planner.shape
    if shape.num_events >= MIN_TRAINED_EVENTS and shape.num_held_out >= MIN_HELD_OUT:
        return True
    planner.notes.append(
        f"Nothing is trained: {shape.num_events:,} events of which {shape.num_held_out} users have "
        f"some to hold out; from {MIN_TRAINED_EVENTS} events and {MIN_HELD_OUT} such users on, "
        "models are"
    )
    return False


def users_measured(planner: Planner) -> int:
    """Say how many users of a split are measured so that it takes a share of the time left."""
    for number in (EVALUATED_USERS, 1_000, 500):
        seconds = planner.costs.measuring(NUM_FIRST, number, BLENDED_FOR_EACH * number)
        if seconds <= min(MEASURED_SECONDS, MEASURED_SHARE * planner.left):
            return number
    return HASTY_USERS


def plan_first(planner: Planner) -> None:
    """Plan what is served within a minute: models that count, or solve in closed form."""
    users = users_measured(planner)
    choices = first_choices(planner, users)
    parts = [Part(name="popularity", what="", why="for users nothing is known of", seconds=1.0)]
    if planner.left < POPULAR_ONLY:
        planner.notes.append(
            f"{planner.left:,.0f} s are left, so only what is popular, and what occurs together, "
            f"is served; from {POPULAR_ONLY:.0f} s on there is more"
        )
        choices["blend"] = {"enabled": False}
        planner.add(Round(name=FIRST, choices=choices, parts=tuple(parts)))
        planner.left = 0.0
        return
    for part, chosen in (knn_part(planner), repeats_part(planner), ease_part(planner)):
        section = next(iter(chosen), "")
        if not section or planner.is_off(part, f"{section}.enabled"):
            continue
        if chosen[section]["enabled"]:
            parts.append(part)
            choices |= chosen
        else:
            planner.left_out.append(without_time(part, planner.left))
    measuring = planner.costs.measuring(len(parts) + 1, users, BLENDED_FOR_EACH * users)
    parts.append(
        Part(name="blend, evaluation, bundle", what="", why="to be served", seconds=measuring)
    )
    planner.add(Round(name=FIRST, choices=choices, parts=tuple(parts)))


def first_choices(planner: Planner, users: int) -> Table:
    """Decide on the history, and switch all that is trained off."""
    share = planner.shape.repeat_share
    repeats = share >= REPEATS_FROM
    planner.notes.append(
        f"Lists {'may repeat' if repeats else 'leave out'} the history: {share:.0%} of the "
        "held-out events repeat an item (evaluation.exclude_history)"
    )
    off: Table = {"enabled": False}
    measured = {"exclude_history": not repeats, "num_resamples": 0, "max_users": users}
    trained = ("training", "sequence_training", "generative_training", "ranker_training")
    return {
        "evaluation": measured,
        "blend": {"max_queries": BLENDED_FOR_EACH * users},
        "content": {"encoder": "none"},
        "semantic_ids": {"method": "none"},
        **dict.fromkeys((*trained, "ease", "item_knn", "repeats", "next_basket"), off),
    }


def knn_part(planner: Planner) -> tuple[Part, Table]:
    """Describe the models that count what occurs together."""
    chosen: Table = {"enabled": True}
    if planner.shape.num_items > FEW_ITEMS:
        chosen |= {"length_weight": [0.7], "half_life_days": [0.0]}
    part = Part(
        name="item-to-item, item k-nearest neighbours",
        what="what occurs together",
        why=f"{planner.shape.num_events:,} events",
        seconds=planner.costs.counting(),
    )
    return part, {"item_knn": chosen}


def repeats_part(planner: Planner) -> tuple[Part, Table]:
    """Describe the models of what is taken again, where anything is."""
    shape = planner.shape
    part = Part(
        name="repeats, next basket",
        what="what a user takes again",
        why=f"{shape.repeat_share:.0%} of the held-out events do",
        seconds=planner.costs.counting(),
    )
    if shape.repeat_share < REPEATS_FROM:
        return part, {}
    return part, {"repeats": {"enabled": True}, "next_basket": {"enabled": shape.has_times}}


def ease_part(planner: Planner) -> tuple[Part, Table]:
    """Size EASE: exact on as many items as memory and time allow, the others one at a time."""
    costs, shape = planner.costs, planner.shape
    room = planner.machine.memory_bytes - costs.bytes_needed(num_sources=4)
    number = min(shape.num_items, costs.largest_ease(MEMORY_SHARE * room))
    seconds = min(FIRST_SECONDS, planner.left / 3)
    least = min(MIN_EXACT_ITEMS, number)
    while number > least and costs.ease(number) > seconds:
        number = max(least, int(number * 0.8))
    of = "" if number == shape.num_items else f" of {shape.num_items:,}"
    part = Part(
        name="EASE",
        what=f"exact on {number:,} items{of}",
        why="the strongest model without training",
        seconds=costs.ease(number),
    )
    if number == 0 or part.seconds > seconds:
        return part, {"ease": {"enabled": False}}
    chosen: Table = {"enabled": True, "exact_items": number}
    if shape.num_items > FEW_ITEMS:
        chosen["l2"] = [100.0]
    return part, {"ease": chosen}


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
    ends = Part(name="blend, evaluation, bundle", what="", why="to be served", seconds=measuring)
    planner.add(following(planner.rounds[-1], "sequence model", choices, *parts, ends))


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
    """Plan the round of the two-tower."""
    if not planner.rounds[1:]:
        return
    long = planner.shape.mean_length >= recipes.LONG_HISTORY
    settings = TwoTowerConfig(embedding_dim=64, max_history=20 if long else 50)
    training = TwoTowerTrainingConfig(
        batch_size=512 if long else 256,
        max_epochs=5.0 if long else 12.0,
        patience=2 if long else 4,
        max_seconds=TWO_TOWER_SECONDS,
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
    measuring = planner.costs.measuring(7, EVALUATED_USERS, BLEND_USERS)
    if seconds + measuring > SAFETY * planner.left:
        planner.left_out.append(
            without_time(replace(part, seconds=seconds + measuring), planner.left)
        )
        return
    choices: Table = {"two_tower": plain(settings), "training": plain(training)}
    ends = Part(name="blend, evaluation, bundle", what="", why="to be served", seconds=measuring)
    planner.add(following(planner.rounds[-1], "two-tower", choices, part, ends))


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
