"""Plans of automatic runs follow the shape of the data and the time that is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.make_plan import make_plan
from pipelines.auto.plan import CONTENT, Plan
from pipelines.auto.shape import DataShape, judged_by, repeat_share, sequence_recipe
from pipelines.config.operation import AutoConfig
from pipelines.doctor.doctor import GIB
from pipelines.presets import PRESETS
from pipelines.stages.build_features import features_config
from recsys.data.dataset import Sequences

MACHINE = Machine(device="cpu", num_cpus=2, memory_bytes=16 * GIB, flops=200e9)
SHOP = DataShape(
    num_events=100_000,
    num_users=12_000,
    num_items=10_000,
    num_cold=0,
    mean_length=8.3,
    long_length=15,
    by_time=False,
    judged_by="Models are judged by each user's last two events",
    num_held_out=12_000,
    repeat_share=0.0,
    text_share=1.0,
    text_characters=60.0,
    num_categories=20,
    num_days=900,
)


def plan_of(shape: DataShape = SHOP, left: float = 600.0, **settings: Any) -> Plan:
    machine, user = settings.get("machine", MACHINE), settings.get("user", {})
    return make_plan(shape, machine, user, left, settings.get("encoder"))


def test_the_first_round_trains_nothing_is_short_and_is_kept_by_the_next():
    first, second, *_ = plan_of().rounds
    assert first.seconds < 60
    assert first.choices["ease"]["enabled"]
    for section in ("two_tower_training", "sequence_training", "generative_training"):
        assert first.choices[section] == {"enabled": False}
    assert second.choices["sequence_training"]["enabled"]
    assert second.choices["ease"] == first.choices["ease"]


def test_kinds_are_named_with_what_lists_are_for():
    def noted(kinds: dict[str, int], **user: Any) -> str:
        plan = plan_of(replace(SHOP, kinds=kinds), user=user)
        return next((note for note in plan.notes if "Kinds" in note), "")

    assert noted({"view": 100_000}) == ""
    several = noted({"view": 90_000, "purchase": 10_000})
    assert "view 90,000, purchase 10,000. Lists are for all" in several
    assert "dislike count for no item" in noted({"view": 90_000, "dislike": 10_000})
    aim = {"evaluation": {"target_types": ["buy"]}}
    assert "Lists are for buy (" in noted({"view": 1, "buy": 1}, **aim)


def test_a_plan_fits_into_the_time_that_is_left_and_reads_back_equal():
    for left in (30.0, 60.0, 200.0, 600.0, 1800.0):
        plan = plan_of(left=left)
        assert sum(one.seconds for one in plan.rounds) <= left
        assert Plan.of_table(plan.table()) == plan


def test_less_time_means_a_shorter_training_of_fewer_passes_then_none():
    def trained(key: str, left: float) -> float:
        rounds = plan_of(left=left).rounds
        return rounds[1].choices["sequence_training"].get(key, 0.0) if len(rounds) > 1 else 0.0

    assert trained("max_seconds", 1_000.0) > trained("max_seconds", 300.0) > 0.0
    assert trained("max_epochs", 1_000.0) > trained("max_epochs", 90.0) > 0.0
    assert trained("max_epochs", 60.0) == 0.0


def test_repeats_decide_whether_lists_leave_out_the_history():
    assert plan_of().rounds[0].choices["evaluation"]["exclude_history"]
    music = plan_of(replace(SHOP, repeat_share=0.4)).rounds[0].choices
    assert not music["evaluation"]["exclude_history"]
    assert music["repeats"] == {"enabled": True}


def test_items_without_texts_get_semantic_ids_of_behaviour():
    bare = plan_of(replace(SHOP, text_share=0.0, text_characters=0.0)).rounds
    assert bare[0].choices["content"] == {"encoder": "none"}
    assert bare[1].choices["semantic_ids"]["source"] == "sequence"
    assert plan_of().rounds[1].choices["semantic_ids"]["source"] == "content"


def test_what_is_set_off_is_left_out_and_said():
    for name in ("sequence", "two_tower"):
        plan = plan_of(user={f"{name}_training": {"enabled": False}})
        assert all(name not in one.choices for one in plan.rounds)
        assert any(f"{name}_training.enabled = false is set" in part.why for part in plan.left_out)


def test_a_few_events_train_nothing():
    plan = plan_of(replace(SHOP, num_events=10, num_users=2, num_held_out=2, num_items=5))
    assert len(plan.rounds) == 1
    assert any("Nothing is trained" in note for note in plan.notes)


def test_ease_leaves_out_the_items_that_it_has_no_time_for():
    ease = plan_of(replace(SHOP, num_items=50_000)).rounds[0].choices["ease"]
    assert ease["extended_items"] == ease["exact_items"] < 50_000
    slow = replace(MACHINE, flops=1.3e10)
    plan = plan_of(machine=slow)
    assert plan.rounds[0].choices["ease"] == {"enabled": False}
    why = next(part.why for part in plan.left_out if part.name == "EASE")
    assert "more than the 18 s that the plan has for it; ease.enabled = true" in why
    # With a first bundle served, it may take longer.
    again = make_plan(SHOP, slow, {}, 600.0, is_served=True)
    assert again.rounds[0].choices["ease"]["enabled"]


def timed(name: str, seconds: float, dim: int = 1_024) -> TimedEncoder:
    return TimedEncoder(name=name, dim=dim, seconds=seconds)


def test_an_encoder_that_is_set_is_not_cut_and_its_seconds_are_planned():
    user = {"content": {"encoder": "endpoint", "columns": ["price"]}}
    plan = plan_of(user=user, encoder=timed("bge", 25.0))
    first, best = plan.rounds
    assert first.deferred == ("content.encoder",)
    assert best.deferred == ()
    assert "content_similarity" not in best.choices
    assert best.choices["semantic_ids"]["content_columns"] is None
    (part,) = [one for one in best.parts if one.name == CONTENT]
    assert "endpoint (bge, width 1024)" in part.what
    assert part.seconds == 25.0


def test_an_encoder_that_is_set_and_has_no_time_is_left_out_and_said():
    user = {"content": {"encoder": "endpoint"}}
    for left in (600.0, 20.0):
        plan = plan_of(user=user, left=left, encoder=timed("bge", 900.0))
        assert all("content.encoder" in one.deferred for one in plan.rounds)
        (part,) = [one for one in plan.left_out if one.name == CONTENT]
        assert "900 s are needed" in part.why


def test_what_is_set_on_waits_for_the_round_after_the_first():
    user = {"ranker_training": {"enabled": True}, "content": {"encoder": "none"}}
    first, best = plan_of(user=user).rounds
    assert first.deferred == ("content.encoder", "ranker_training.enabled")
    assert best.choices["semantic_ids"]["source"] == "sequence"


SHORT: dict[str, Any] = {"num_users": 5_000, "num_items": 10_000, "mean_history": 7.4}
LONG: dict[str, Any] = {"num_users": 943, "num_items": 1_682, "mean_history": 106.0}
MANY: dict[str, Any] = {**SHORT, "num_users": 50_000}


def test_long_histories_get_more_blocks_and_windows_that_hold_them():
    short, long = sequence_recipe(**SHORT).model, sequence_recipe(**LONG).model
    assert (short.num_blocks, long.num_blocks) == (1, 2)
    assert long.max_length > short.max_length


def test_texts_need_fewer_passes_and_less_of_the_neighbours():
    ids, text = sequence_recipe(**MANY), sequence_recipe(**MANY, has_text=True)
    assert text.training.max_epochs < ids.training.max_epochs
    assert 0 < text.model.neighbour_weight < ids.model.neighbour_weight


@pytest.mark.parametrize(
    ("change", "reads_times"),
    [({}, False), ({"has_times": True}, True), ({"has_times": True, "has_text": False}, False)],
)
def test_the_calendar_is_for_texts_with_times(change, reads_times):
    shape = {**MANY, "has_text": True, **change}
    assert (sequence_recipe(**shape).model.calendar_days > 0) is reads_times


def test_large_catalogues_are_sampled():
    def drawn(num_items: int) -> int | None:
        return sequence_recipe(**{**SHORT, "num_items": num_items}).model.num_uniform_negatives

    sizes = (4_000, 10_000, 40_000, 1_000_000)
    assert [drawn(size) for size in sizes] == [None, 2_048, 5_000, 8_192]


def sequences(*users: list[int]) -> Sequences:
    """Lay users' items out, the last event of each held out for test, the one before it too."""
    ends = np.cumsum([0, 0, *map(len, users)])
    return Sequences(
        item_rows=np.array([item for user in users for item in user]),
        offsets=ends,
        train_end=np.maximum(ends[:-1], ends[1:] - 2),
        validation_end=np.maximum(ends[:-1], ends[1:] - 1),
    )


def test_an_item_repeats_within_a_user_only():
    assert repeat_share(sequences([1, 2, 1, 1], [1, 2, 3])) == 0.5
    assert repeat_share(sequences([1, 2, 3, 4], [1, 2, 3])) == 0.0


def test_the_share_of_repeats_is_of_held_out_events():
    assert repeat_share(sequences([1, 2, 1, 2], [3, 3, 4, 5])) == 0.5
    assert repeat_share(sequences()) == 0.0


def test_only_an_automatic_run_lets_the_log_decide():
    config = PRESETS["auto"]()
    config = replace(config, data=replace(config.data, events=Path("events.csv")))
    features = features_config(config)
    assert (features.splits.kind, features.catalogue_only_items) == ("auto", "auto")
    fixed = features_config(replace(config, auto=AutoConfig(enabled=False)))
    assert (fixed.splits.kind, fixed.catalogue_only_items) == ("leave_one_out", False)


def test_what_models_are_judged_by_is_said_with_its_moment_or_its_reason():
    report = {
        "split_kind": "global_time",
        "split_reason": "",
        "validation_from": "2024-05-01T00:00:00Z",
        "test_from": "2024-05-20T00:00:00Z",
    }
    assert "2024-05-01" in judged_by(report)
    assert "2024-05-20" in judged_by(report)
    last = {"split_kind": "leave_one_out", "split_reason": "events have no times"}
    assert "events have no times" in judged_by(last)


def test_without_a_sequence_model_the_two_tower_has_a_round_of_its_own():
    plan = plan_of(left=3600.0, user={"sequence_training": {"enabled": False}})
    best = plan.rounds[1]
    assert [part.name for part in best.parts][-2] == "two-tower"
    assert best.choices["two_tower_training"]["enabled"]
    assert best.choices["ease"] == plan.rounds[0].choices["ease"]


def test_texts_are_read_without_a_sequence_model_and_without_any_training():
    off = {"enabled": False}
    for user in ({}, {"two_tower_training": off}):
        plan = plan_of(left=3600.0, user={"sequence_training": off, **user})
        assert plan.rounds[1].choices["content"] == {"encoder": "minilm+words"}
