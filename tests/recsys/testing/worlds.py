"""Worlds with a known truth: domains, tasks, slots, drift, cold items and planted defects.

A request of a user in a domain shows one item in each slot. A shown item is examined with a
probability of its slot alone; an examined one is viewed, a viewed one clicked, a clicked one
purchased, each with a probability of user, item, domain and day (the examination hypothesis,
Richardson et al. 2007). The logging policy puts items of high quality into high slots, except
where it explores, so that clicks alone confuse slot and relevance; propensities are exact.

Everything is drawn as integers and every probability is a whole number of millionths, so that a
world is the same to the last bit on every platform; ``FROZEN`` holds the digests.

Axes: E events, I impressions, R requests, S slots, U users, N items, G segments, T topics,
M domains, K tasks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.recsys.testing.world_defects import START, Defects, EventTable, with_defects
from tests.recsys.testing.world_text import DOMAINS, TOPICS, Catalogue, catalogue_of
from tests.recsys.testing.world_truth import MILLION, TASKS, WEIGHTS_OF_DRIFT, Truth

DAY = 86_400
EVENT_TYPES = ("impression", *TASKS)
# Seconds after the request; one delay per type, so that no two events are alike by chance.
DELAYS = np.array([0, 1, 2, 30])
DRAW_BITS = 40


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """One world; logits are in thousandths."""

    seed: int
    num_users: int = 400
    num_items: int = 320
    num_segments: int = 6
    """Users of one segment have the same taste; ``segment`` is a column of the users."""
    num_topics: int = 8
    num_domains: int = 4
    """Domains 2n and 2n + 1 have opposite tastes; the others' are shifted by n topics."""
    num_requests: int = 2_000
    num_days: int = 30
    examination: tuple[float, ...] = (1.0, 0.7, 0.52, 0.4, 0.3, 0.22)
    """Probability that a slot is looked at, at most three decimals; its length is S."""
    exploration: float = 0.3
    """Share of the requests in which any group of items may stand in any slot."""
    view_logit: int = 800
    click_logit: int = -600
    purchase_logit: int = -800
    taste: int = 2_500
    """Logit of the most liked topic; the least liked one has its negative."""
    quality: int = 700
    """Item qualities are uniform between minus and plus this."""
    drift: float = 0.0
    """Share of the taste that is another one on the last day; it moves day by day."""
    cold_share: float = 0.0
    """Items that are not shown before ``launch_day``; their text tells their topic."""
    launch_day: int = 24
    leaky_feature: bool = False
    """Adds the event column ``hint``, which is the click that the model should predict."""
    defects: Defects = field(default_factory=Defects)

    def __post_init__(self) -> None:
        for name, most in (("num_topics", len(TOPICS)), ("num_domains", len(DOMAINS))):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be in [1, {most}], got {getattr(self, name)}")
        if self.num_topics < 2 or self.num_users < 1 or self.num_segments < 1:
            raise ValueError(
                "num_topics must be >= 2, num_users and num_segments >= 1, got "
                f"{self.num_topics}, {self.num_users}, {self.num_segments}"
            )
        for name in ("exploration", "drift", "cold_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if not self.examination or not all(0 < share <= 1 for share in self.examination):
            raise ValueError(f"examination must be in (0, 1] by slot, got {self.examination}")
        if self.num_items < self.num_domains * self.num_slots:
            raise ValueError(
                f"num_items must be >= num_domains * num_slots = "
                f"{self.num_domains * self.num_slots}, got {self.num_items}"
            )
        if not 1 <= self.num_requests <= self.num_days * DAY:
            raise ValueError(
                f"num_requests must be in [1, {self.num_days * DAY}] (one a second), got "
                f"{self.num_requests}"
            )

    @property
    def num_slots(self) -> int:
        return len(self.examination)


@dataclass(frozen=True, kw_only=True)
class Impressions:
    """What was shown and what came of it, all [I], in order of time, then slot.

    Users and items are numbers from 0; user number n is ``user-n``.
    """

    requests: NDArray[np.int64]
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    domains: NDArray[np.int64]
    """Domain of the request, which is also the domain of the item."""
    slots: NDArray[np.int64]
    """From 0, the top of the list."""
    days: NDArray[np.int64]
    """From 0."""
    times: NDArray[np.int64]
    """Unix seconds of the request."""
    propensities: NDArray[np.float64]
    """Probability that the policy shows this item in this slot of such a request."""
    labels: NDArray[np.bool_]
    """[I, K], whether it was viewed, clicked, purchased."""

    def probabilities(self, truth: Truth, task: str) -> NDArray[np.float64]:
        """Give the truth's probability of a task for each impression in its slot, [I]."""
        return truth.probability(
            task, self.users, self.items, self.domains, days=self.days, slots=self.slots
        )


@dataclass(frozen=True, kw_only=True)
class KnownWorld:
    """Raw tables and everything that is true of them."""

    config: WorldConfig
    truth: Truth
    impressions: Impressions
    events: EventTable
    """Raw events, in order of time where no defect stands between."""
    catalogue: Catalogue
    available_from: NDArray[np.int64]
    """[N] unix seconds of the item's first possible impression."""

    def digest(self) -> str:
        """Return the sha256 of every array, number and text of the world."""
        hasher = hashlib.sha256()
        shown, truth = self.impressions, self.truth
        arrays = [
            *(getattr(shown, name) for name in Impressions.__dataclass_fields__),
            *(getattr(truth, name) for name in Truth.__dataclass_fields__),
            *(getattr(self.events, name) for name in EventTable.__dataclass_fields__),
            self.available_from,
            self.catalogue.prices,
        ]
        for value in arrays:
            array = np.ascontiguousarray(value)
            hasher.update(f"{array.dtype.str}{array.shape}".encode())
            hasher.update(array.tobytes())
        texts = (self.catalogue.item_ids, self.catalogue.titles, self.catalogue.descriptions)
        hasher.update("\n".join("\t".join(column) for column in texts).encode())
        hasher.update("\n".join("|".join(names) for names in self.catalogue.categories).encode())
        return hasher.hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Shelf:
    """Items by domain and quality group in the order that the policy draws from."""

    items: NDArray[np.int64]
    """[N], all items of a group side by side."""
    bounds: NDArray[np.int64]
    """[M * S + 1], where the groups begin."""
    ends: NDArray[np.int64]
    """[N], cumulative weights."""


def world(config: WorldConfig) -> KnownWorld:
    """Generate a world; the same configuration gives the same bits.

    Raises:
        ValueError: If ``cold_share`` leaves a group of items with nothing to show before launch.
    """
    rng = np.random.Generator(np.random.PCG64(config.seed))
    truth = _truth(config, rng)
    launch = np.where(
        rng.integers(0, 1_000, config.num_items) < round(config.cold_share * 1_000),
        config.launch_day,
        0,
    )  # [N]
    impressions = _impressions(config, truth, launch, rng)
    words = rng.integers(0, 1 << 30, (config.num_items, 2))
    events = _events(config, impressions)
    return KnownWorld(
        config=config,
        truth=truth,
        impressions=impressions,
        events=with_defects(events, config.defects, config.num_items, rng),
        catalogue=catalogue_of(truth.topic_of_item, truth.domain_of_item, words, prices(truth)),
        available_from=START + DAY * launch,
    )


def prices(truth: Truth) -> NDArray[np.float64]:
    """Price items by a whole number of cents that says nothing of anything else, [N]."""
    cents: NDArray[np.int64] = 100 + np.arange(truth.num_items) * 7_919 % 4_900
    return cents / 100


def _truth(config: WorldConfig, rng: np.random.Generator) -> Truth:
    shape = (2, config.num_segments, config.num_topics)
    places = np.argsort(rng.integers(0, 1 << 60, shape), axis=-1, kind="stable")
    persona = 200 * places // (config.num_topics - 1) - 100  # [2, G, T] in [-100, 100]
    weights = np.arange(config.num_days) * round(config.drift * WEIGHTS_OF_DRIFT)
    return Truth(
        examination=np.array([round(share * 1_000) for share in config.examination]),
        segment_of_user=rng.integers(0, config.num_segments, config.num_users),
        topic_of_item=rng.integers(0, config.num_topics, config.num_items),
        domain_of_item=np.arange(config.num_items) % config.num_domains,
        quality_of_item=rng.integers(-config.quality, config.quality + 1, config.num_items),
        personas=persona,
        drift_of_day=weights // max(config.num_days - 1, 1),
        base_logits=np.array([config.view_logit, config.click_logit, config.purchase_logit]),
        taste=np.array(config.taste),
    )


def _shelf(config: WorldConfig, truth: Truth, weights: NDArray[np.int64]) -> _Shelf:
    """Group each domain's items into S groups of falling quality."""
    num_slots = config.num_slots
    order = np.lexsort((-truth.quality_of_item, truth.domain_of_item))
    domains = truth.domain_of_item[order]
    counts = np.bincount(domains, minlength=config.num_domains)
    place = np.arange(config.num_items) - (np.cumsum(counts) - counts)[domains]
    groups = domains * num_slots + place * num_slots // counts[domains]  # ascending
    bounds = np.searchsorted(groups, np.arange(config.num_domains * num_slots + 1))
    ends = np.cumsum(weights[order])
    totals = np.diff(np.concatenate([[0], ends])[bounds])
    if (totals == 0).any():
        raise ValueError(
            f"cold_share = {config.cold_share} leaves {int((totals == 0).sum())} groups of items "
            "with none to show before launch_day; lower it or raise num_items"
        )
    return _Shelf(items=order, bounds=bounds, ends=ends)


def _impressions(
    config: WorldConfig, truth: Truth, launch: NDArray[np.int64], rng: np.random.Generator
) -> Impressions:
    num_slots, num_requests = config.num_slots, config.num_requests
    numbers = np.arange(num_requests)
    offsets = numbers * (config.num_days * DAY) // num_requests  # [R] distinct seconds
    users = np.repeat(rng.integers(0, config.num_users, num_requests), num_slots)
    domains = np.repeat(rng.integers(0, config.num_domains, num_requests), num_slots)
    explored = rng.integers(0, 1_000, num_requests) < round(config.exploration * 1_000)
    turns = np.where(explored, rng.integers(0, num_slots, num_requests), 0)  # [R]
    slots = np.tile(np.arange(num_slots), num_requests)
    turn_of = np.repeat(turns, num_slots)
    days = np.repeat(offsets // DAY, num_slots)
    ranks = np.argsort(np.argsort(rng.integers(0, 1 << 60, config.num_items), kind="stable"))
    weights = 1 + 5_000 // (5 + ranks)  # [N] a few items are shown often
    groups = domains * num_slots + (slots + turn_of) % num_slots
    draws = rng.integers(0, 1 << DRAW_BITS, len(groups))
    items = np.zeros(len(groups), np.int64)
    shares = np.zeros(len(groups))
    explore = round(config.exploration * 1_000)
    # Probability of the turn, times 1_000 * S.
    turned = explore + np.where(turn_of == 0, num_slots * (1_000 - explore), 0)
    for launched in (False, True):
        part = np.flatnonzero((days >= config.launch_day) == launched)
        if not len(part):
            continue
        shown = np.where((launch == 0) | launched, weights, 0)
        shelf = _shelf(config, truth, shown)
        ends = np.concatenate([[0], shelf.ends])
        low, high = ends[shelf.bounds[groups[part]]], ends[shelf.bounds[groups[part] + 1]]
        target = low + (draws[part] * (high - low) >> DRAW_BITS)
        items[part] = shelf.items[np.searchsorted(shelf.ends, target, side="right")]
        shares[part] = turned[part] * shown[items[part]] / (1_000 * num_slots * (high - low))
    slate = {"users": users, "items": items, "domains": domains, "slots": slots, "days": days}
    return Impressions(
        requests=np.repeat(numbers, num_slots),
        times=np.repeat(START + offsets, num_slots),
        propensities=shares,
        labels=_labels(truth, slate, rng),
        **slate,
    )


def _labels(
    truth: Truth, slate: dict[str, NDArray[np.int64]], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw examination, then each task given the one before, [I, K]."""
    draws = rng.integers(0, MILLION, (len(slate["users"]), 1 + len(TASKS)))
    happened = draws[:, 0] < 1_000 * truth.examination[slate["slots"]]
    labels = np.zeros((len(draws), len(TASKS)), np.bool_)
    for place in range(len(TASKS)):
        step = truth.step_millionths(
            place, slate["users"], slate["items"], slate["domains"], slate["days"]
        )
        happened = happened & (draws[:, place + 1] < step)
        labels[:, place] = happened
    return labels


def _events(config: WorldConfig, shown: Impressions) -> EventTable:
    """Write one row an impression and one an outcome, in order of time, slot and type."""
    happened = np.column_stack([np.ones(len(shown.users), np.bool_), shown.labels])  # [I, K + 1]
    sources, types = np.nonzero(happened)
    times = shown.times[sources] + DELAYS[types]
    order = np.lexsort((types, sources, times))
    sources, types, times = sources[order], types[order], times[order]
    sessions = shown.users[sources] * config.num_days + shown.days[sources]
    purchase = EVENT_TYPES.index("purchase")
    cents = 100 + shown.items[sources] * 7_919 % 4_900
    hint = shown.labels[sources, TASKS.index("click")] if config.leaky_feature else None
    return EventTable(
        user_ids=numbered("user", config.num_users)[shown.users[sources]],
        item_ids=numbered("item", config.num_items)[shown.items[sources]],
        times=times,
        event_types=np.array(EVENT_TYPES)[types],
        values=np.where(types == purchase, cents / 100, 1.0),
        domains=np.array(list(DOMAINS))[shown.domains[sources]],
        session_ids=numbered("session", config.num_users * config.num_days)[sessions],
        request_ids=numbered("request", config.num_requests)[shown.requests[sources]],
        slots=shown.slots[sources],
        propensities=shown.propensities[sources],
        hints=np.zeros(0, np.bool_) if hint is None else hint,
        impressions=sources,
        defects=np.zeros(len(sources), np.int8),
    )


def numbered(prefix: str, count: int) -> NDArray[np.str_]:
    """Name things prefix-0, prefix-1, ..."""
    return np.array([f"{prefix}-{number}" for number in range(count)])


ALL_DEFECTS = Defects(
    duplicates=40,
    future_times=7,
    early_times=6,
    nan_values=9,
    nul_ids=5,
    missing_ids=8,
    unknown_items=11,
    crawler_events=600,
)
FROZEN: dict[str, tuple[WorldConfig, str]] = {
    "synthetic-tiny": (
        WorldConfig(seed=11, num_users=60, num_items=96, num_requests=400, num_domains=2),
        "1da04efd6dbb13b13aff14e465d44b667959f23b2cdba117d6d014442dd7d981",
    ),
    "synthetic-domains": (
        WorldConfig(seed=12, num_users=2_000, num_items=960, num_requests=50_000),
        "bb91b7a020acb0e63ba99370d0753ff4146bbdc02cc983bb6b8309cd778f0817",
    ),
    "synthetic-drift": (
        WorldConfig(
            seed=13, num_users=2_000, num_items=960, num_requests=30_000, num_days=60,
            drift=1.0, cold_share=0.15, launch_day=45,
        ),
        "3597a7c786f744ce828cb60d9b86c67ccef809479bd33c00fe8fad1d5c2bbf5c",
    ),
    "synthetic-defects": (
        WorldConfig(seed=14, num_users=200, leaky_feature=True, defects=ALL_DEFECTS),
        "40c846d3c459d79d2c2a053246e2e84a2372b3e861dafd35cd5ecf8200ee3d7e",
    ),
}  # fmt: skip
"""Configuration and sha256 by name. Never changed: comparisons refer to them."""


def frozen_world(name: str) -> KnownWorld:
    """Generate a world by name and check that it is the known one.

    Raises:
        ValueError: If there is none of that name, or its digest is another.
    """
    if name not in FROZEN:
        raise ValueError(f"no world {name!r}; known: {', '.join(FROZEN)}")
    config, expected = FROZEN[name]
    made = world(config)
    if (found := made.digest()) != expected:
        raise ValueError(
            f"world {name} has sha256 {found}, but the frozen one has {expected}; numbers on it "
            f"cannot be compared. Does numpy {np.__version__} draw other integers?"
        )
    return made
