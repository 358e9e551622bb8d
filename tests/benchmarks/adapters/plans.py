"""How ``benchmark_quality.py`` trains: by what validation liked, of the data it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from recsys.models.sequence.config import SequenceConfig

ENCODER = ("encoder.*",)
ENCODER_AND_CONTENT = ("encoder.*", "item_tower.content")
ITEM_TABLE = ("item",)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one model, or one adapter, is trained."""

    epochs: float
    learning_rate: float
    batch_size: int = 256
    targets: tuple[str, ...] = ()
    """Of an adapter; none is the whole model."""
    tables: tuple[str, ...] = ()
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    softmax_over: Literal["catalogue", "domain"] = "domain"
    """What a label is ranked against: every item, or those of its domain."""
    average: float = 0.0
    """Decay of a running mean of the weights that is judged in their place; 0 for none."""
    centred: float = 0.0
    """Share that an adapter of a new domain takes off what its items have in common."""
    replayed: bool = False
    """Whether an adapter of a new domain also learns from the domains that the base knows."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Every training of one comparison; where there are several of a kind, the best picked one."""

    model: SequenceConfig
    shared: Plan
    own: tuple[Plan, ...]
    full: tuple[Plan, ...]
    adapters: dict[str, tuple[Plan, ...]]
    fresh: tuple[Plan, ...]
    """Of an adapter for a domain that the base never met."""


def low_rank(epochs: float, rate: float, rank: int, scale: float = 2.0, **more: object) -> Plan:
    """Describe an adapter of encoder, content and the domain's item vectors."""
    plan = Plan(
        epochs=epochs,
        learning_rate=rate,
        targets=ENCODER_AND_CONTENT,
        tables=ITEM_TABLE,
        rank=rank,
        alpha=scale * rank,
    )
    return replace(plan, **more)  # type: ignore[arg-type]


def fresh_plans(rank: int) -> tuple[Plan, ...]:
    """Try rates, lengths and starts for an adapter of a hundred users."""

    def plan(epochs: float, rate: float, centred: float) -> Plan:
        return Plan(
            epochs=epochs,
            learning_rate=rate,
            batch_size=32,
            targets=ENCODER_AND_CONTENT,
            rank=rank,
            alpha=2.0 * rank,
            centred=centred,
        )

    starts = tuple(plan(0.1, 1e-9, share) for share in (0.5, 1.0))
    learning = tuple(
        plan(10, rate, share) for share in (0.5, 0.0, 1.0) for rate in (3e-4, 1e-3, 1e-4)
    )
    # A step of next to nothing tells of the start.
    return starts + learning


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
    own=tuple(Plan(epochs=epochs, learning_rate=2e-3) for epochs in (12, 36)),
    full=tuple(Plan(epochs=6, learning_rate=rate) for rate in (3e-4, 1e-3)),
    adapters={
        name: tuple(
            Plan(epochs=6, learning_rate=rate, targets=targets, tables=tables, rank=rank)
            for rate in (2e-3, 6e-3)
        )
        for name, targets, tables, rank in (
            ("lora", ENCODER_AND_CONTENT, (), 5),
            ("lora with the items' vectors", ENCODER_AND_CONTENT, ITEM_TABLE, 4),
            ("lora of the encoder", ENCODER, (), 5),
        )
    },
    fresh=fresh_plans(5),
)
REAL = Plans(
    # As the presets of these sets.
    model=SequenceConfig(
        embedding_dim=256,
        num_members=2,
        calendar_days=140.0,
        backend="torch",
    ),
    shared=Plan(epochs=14, learning_rate=2e-3),
    own=(Plan(epochs=14, learning_rate=2e-3),),
    full=(Plan(epochs=6, learning_rate=1e-3),),
    adapters={"lora": (low_rank(6, 2e-3, 24),)},
    fresh=fresh_plans(8),
)


def protocol_of(plans: Plans, *, split: str, users: int | None, num_seeds: int) -> str:
    """Say how the numbers of a table came about."""
    some = plans.adapters["lora"]
    judged = {
        "validation": "Picked on half of the validation users, reported on the other half",
        "test": "Picked on validation, reported on test users",
    }[split]
    full = " or ".join(f"{one.epochs:g} at {one.learning_rate:g}" for one in plans.full)
    low = " or ".join(f"{one.epochs:g} at {one.learning_rate:g} (rank {one.rank})" for one in some)
    own = " or ".join(f"{one.epochs:g}" for one in plans.own)
    return (
        f"{num_seeds} seed(s); passes of the shared model {plans.shared.epochs:g}, of own models "
        f"{own}, of fine-tuning {full}, of adapters {low}, whichever was picked; a label is ranked "
        f"against the {some[0].softmax_over}; {users or 'all'} users of each domain. {judged}, "
        "ranked among the domain's items. A new domain is one that the base was trained without."
    )


def shortened(plans: Plans, share: float) -> Plans:
    """Take a share of all passes, to try the script out."""

    def less(plan: Plan) -> Plan:
        return replace(plan, epochs=plan.epochs * share)

    return replace(
        plans,
        shared=less(plans.shared),
        own=tuple(map(less, plans.own)),
        full=tuple(map(less, plans.full)),
        adapters={name: tuple(map(less, some)) for name, some in plans.adapters.items()},
        fresh=tuple(map(less, plans.fresh)),
    )
