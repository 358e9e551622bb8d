from dataclasses import replace
from typing import Any

import pytest

from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.make_plan import make_plan
from pipelines.auto.plan import Plan
from pipelines.auto.shape import DataShape
from pipelines.doctor.machine import GIB

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


def test_the_first_round_trains_nothing_and_is_short() -> None:
    first = plan_of().rounds[0]
    assert first.seconds < 60
    assert first.choices["ease"]["enabled"]
    for section in ("two_tower_training", "sequence_training", "generative_training"):
        assert first.choices[section] == {"enabled": False}


def test_every_round_keeps_what_the_one_before_has() -> None:
    first, second, *_ = plan_of().rounds
    assert second.choices["sequence_training"]["enabled"]
    assert second.choices["ease"] == first.choices["ease"]


@pytest.mark.parametrize("left", [30.0, 60.0, 200.0, 600.0, 1800.0])
def test_a_plan_fits_into_the_time_that_is_left(left: float) -> None:
    assert sum(one.seconds for one in plan_of(left=left).rounds) <= left


def test_less_time_means_fewer_passes_then_no_training() -> None:
    def passes(left: float) -> float:
        rounds = plan_of(left=left).rounds
        return rounds[1].choices["sequence_training"]["max_epochs"] if len(rounds) > 1 else 0.0

    assert passes(1_000.0) > passes(300.0) > passes(60.0) == 0.0


def test_almost_no_time_serves_what_is_popular_and_says_so() -> None:
    plan = plan_of(left=8.0)
    (only,) = plan.rounds
    assert len(only.parts) == 1
    assert not only.choices["ease"]["enabled"]
    assert any("only what is popular" in note for note in plan.notes)


def test_repeats_decide_whether_lists_leave_out_the_history() -> None:
    assert plan_of().rounds[0].choices["evaluation"]["exclude_history"]
    music = plan_of(replace(SHOP, repeat_share=0.4)).rounds[0].choices
    assert not music["evaluation"]["exclude_history"]
    assert music["repeats"] == {"enabled": True}


def test_items_without_texts_get_semantic_ids_of_behaviour() -> None:
    bare = plan_of(replace(SHOP, text_share=0.0, text_characters=0.0)).rounds
    assert bare[0].choices["content"] == {"encoder": "none"}
    assert bare[1].choices["semantic_ids"]["source"] == "sequence"
    assert plan_of().rounds[1].choices["semantic_ids"]["source"] == "content"


@pytest.mark.parametrize("name", ["sequence", "two_tower"])
def test_what_is_set_off_is_left_out_and_said(name: str) -> None:
    plan = plan_of(user={f"{name}_training": {"enabled": False}})
    assert all(name not in one.choices for one in plan.rounds)
    assert any(f"{name}_training.enabled = false is set" in part.why for part in plan.left_out)


def test_a_few_events_train_nothing() -> None:
    plan = plan_of(replace(SHOP, num_events=10, num_users=2, num_held_out=2, num_items=5))
    assert len(plan.rounds) == 1
    assert any("Nothing is trained" in note for note in plan.notes)


def test_too_little_memory_is_refused_before_work() -> None:
    machine = replace(MACHINE, memory_bytes=GIB)
    with pytest.raises(ValueError, match=r"1\.0 GiB of memory are free and .* are needed"):
        plan_of(machine=machine)


def test_two_gibibytes_take_a_smaller_ease() -> None:
    large = replace(SHOP, num_items=40_000)
    plan = plan_of(large, machine=replace(MACHINE, memory_bytes=2 * GIB), left=6_000.0)
    texts = [part.what for part in (*plan.rounds[0].parts, *plan.left_out) if part.name == "EASE"]
    assert texts
    assert " of 40,000" in texts[0]


def test_ease_leaves_out_the_items_that_it_has_no_time_for() -> None:
    ease = plan_of(replace(SHOP, num_items=50_000)).rounds[0].choices["ease"]
    assert ease["extended_items"] == ease["exact_items"] < 50_000


def test_a_plan_reads_back_equal() -> None:
    plan = plan_of()
    assert Plan.of_table(plan.table()) == plan


def timed(name: str, seconds: float, dim: int = 1_024) -> TimedEncoder:
    return TimedEncoder(name=name, dim=dim, seconds=seconds)


def test_an_encoder_that_is_set_is_not_cut_and_its_seconds_are_planned() -> None:
    user = {"content": {"encoder": "endpoint", "columns": ["price"]}}
    plan = plan_of(user=user, encoder=timed("bge", 25.0))
    first, best = plan.rounds
    assert first.deferred == ("content.encoder",)
    assert best.deferred == ()
    assert "content_similarity" not in best.choices
    assert best.choices["semantic_ids"]["content_columns"] is None
    (part,) = [one for one in best.parts if one.name == "content"]
    assert "endpoint (bge, width 1024)" in part.what
    assert part.seconds == 25.0


def test_an_encoder_that_is_set_and_has_no_time_is_left_out_and_said() -> None:
    user = {"content": {"encoder": "endpoint"}}
    for left in (600.0, 20.0):
        plan = plan_of(user=user, left=left, encoder=timed("bge", 900.0))
        assert all("content.encoder" in one.deferred for one in plan.rounds)
        (part,) = [one for one in plan.left_out if one.name == "content"]
        assert "900 s are needed" in part.why


def test_what_is_set_on_waits_for_the_round_after_the_first() -> None:
    user = {"ranker_training": {"enabled": True}, "content": {"encoder": "none"}}
    first, best = plan_of(user=user).rounds
    assert first.deferred == ("content.encoder", "ranker_training.enabled")
    assert best.choices["semantic_ids"]["source"] == "sequence"
