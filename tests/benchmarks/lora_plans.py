"""How ``benchmark_lora_quality.py`` trains: by what validation liked, of the data it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from recsys.models.sequence import SequenceConfig

ENCODER = ("encoder.*",)
ENCODER_AND_CONTENT = ("encoder.*", "item_tower.content")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one model, or one adapter, is trained."""

    epochs: float
    learning_rate: float
    batch_size: int = 256
    targets: tuple[str, ...] = ()
    """Of an adapter; none is the whole model."""
    rank: int = 8
    alpha: float = 16.0
    rivals: Literal["catalogue", "domain"] = "catalogue"
    """What a label is ranked against while adapting: every item, or the domain's."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Every training of one comparison; where there are several of a kind, the best picked one."""

    model: SequenceConfig
    shared: Plan
    own: Plan
    full: tuple[Plan, ...]
    adapters: dict[str, tuple[Plan, ...]]
    fresh: tuple[Plan, ...]
    """Of an adapter for a domain that the base never met."""


def fresh_plans(ranks: tuple[int, ...], rivals: Literal["catalogue", "domain"]) -> tuple[Plan, ...]:
    """Try rates, ranks and places for an adapter of a hundred users."""
    return tuple(
        Plan(
            epochs=40,
            learning_rate=rate,
            batch_size=32,
            targets=targets,
            rank=rank,
            alpha=2.0 * rank,
            rivals=rivals,
        )
        for targets in (ENCODER_AND_CONTENT, ENCODER, ENCODER_AND_CONTENT[1:])
        for rank in ranks
        for rate in (1e-4, 3e-4, 1e-3)
    )


SYNTHETIC = Plans(
    model=SequenceConfig(
        embedding_dim=64,
        hidden_dim=128,
        dropout=0.2,
        backend="torch",
        leave_out_history=False,
        label_smoothing=0.0,
    ),
    shared=Plan(epochs=12, learning_rate=2e-3),
    own=Plan(epochs=12, learning_rate=2e-3),
    full=tuple(Plan(epochs=6, learning_rate=rate) for rate in (3e-4, 1e-3)),
    adapters={
        name: tuple(
            Plan(epochs=6, learning_rate=rate, targets=targets, rank=5) for rate in (2e-3, 6e-3)
        )
        for name, targets in (("lora", ENCODER_AND_CONTENT), ("lora of the encoder", ENCODER))
    },
    fresh=fresh_plans((5,), "catalogue"),
)
REAL = Plans(
    model=SequenceConfig(backend="torch", max_scores=1 << 28),
    shared=Plan(epochs=14, learning_rate=2e-3, batch_size=512),
    own=Plan(epochs=14, learning_rate=2e-3),
    full=(
        Plan(epochs=12, learning_rate=3e-4, rivals="domain"),
        Plan(epochs=6, learning_rate=1e-3, rivals="domain"),
    ),
    adapters={
        "lora": tuple(
            Plan(
                epochs=epochs,
                learning_rate=rate,
                targets=ENCODER_AND_CONTENT,
                rank=rank,
                alpha=2.0 * rank,
                rivals="domain",
            )
            for epochs, rate, rank in ((6, 1e-3, 96), (12, 1e-3, 96), (6, 2e-3, 32))
        )
    },
    fresh=fresh_plans((4, 16), "domain"),
)


def told_of(plans: Plans, *, split: str, users: int | None, num_seeds: int, seconds: float) -> str:
    """Say how the numbers of a table came about."""
    some = plans.adapters["lora"]
    judged = {
        "validation": "Picked on half of the validation users, told of the other half",
        "test": "Picked on validation, told of test users",
    }[split]
    full = " or ".join(f"{one.epochs:g} at {one.learning_rate:g}" for one in plans.full)
    low = " or ".join(f"{one.epochs:g} at {one.learning_rate:g} (rank {one.rank})" for one in some)
    return (
        f"{num_seeds} run(s); passes of shared and own models {plans.shared.epochs:g}, of "
        f"fine-tuning {full}, of adapters {low}, whichever was picked; adapting ranks a label "
        f"against the {some[0].rivals}; {users or 'all'} users of each domain; at most "
        f"{seconds:.0f} s a run. {judged}, ranked among the domain's items. A new domain is one "
        f"that the base was trained without; of {len(plans.fresh)} plans its adapter takes the one "
        "that validation users of the other domains gained most by when those were new."
    )


def shortened(plans: Plans, share: float) -> Plans:
    """Take a share of all passes, to try the script out."""

    def less(plan: Plan) -> Plan:
        return replace(plan, epochs=plan.epochs * share)

    return replace(
        plans,
        shared=less(plans.shared),
        own=less(plans.own),
        full=tuple(map(less, plans.full)),
        adapters={name: tuple(map(less, some)) for name, some in plans.adapters.items()},
        fresh=tuple(map(less, plans.fresh)),
    )
