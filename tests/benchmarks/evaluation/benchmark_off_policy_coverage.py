"""Do off-policy intervals cover the true value as often as they say, on synthetic worlds.

In each world lists are logged by one policy and another's value is estimated from them, many times.
Items have known click rates by group of users, lower further down, and in some worlds a click above
takes from those below; reward models are 30% too low. A confidence sequence covers a repetition if
it holds the value at every one of its 24 looks.
"""

from collections import defaultdict
from multiprocessing import Pool

import numpy as np

from recsys.evaluation.off_policy.estimators import (
    cascade_doubly_robust,
    doubly_robust,
    ips,
    snips,
)
from recsys.evaluation.off_policy.intervals import betting_sequence, interval_of
from recsys.evaluation.off_policy.logs import WEIGHTS, overlap, typical_slot
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.evaluation.off_policy.worlds import (
    draw_log,
    make_world,
    true_value,
    wrong_model,
)

WORLDS = {
    "1 slot, 20% clicks, 500 lists": (500, {"spread": 1.0, "rate": 0.2}),
    "1 slot, 2% clicks, 5,000 lists": (5_000, {"spread": 1.0, "rate": 0.02}),
    "1 slot, 10% clicks, long tails, 5,000 lists": (5_000, {"spread": 1.5, "rate": 0.1}),
    "3 slots, 10% clicks, 2,000 lists": (
        2_000,
        {"slots": 3, "spread": 0.5, "rate": 0.1, "fatigue": 0.3},
    ),
    "5 slots, 5% clicks, 10,000 lists": (
        10_000,
        {"slots": 5, "spread": 0.4, "rate": 0.05, "items": 12, "fatigue": 0.3},
    ),
    "3 independent slots, 10% clicks, 2,000 lists": (
        2_000,
        {"slots": 3, "spread": 0.7, "rate": 0.1, "repeats": True},
    ),
    "3 slots, hardly any overlap, 2,000 lists": (
        2_000,
        {"slots": 3, "spread": 2.0, "rate": 0.1, "fatigue": 0.3},
    ),
}
LEAST, MOST = 90.0, 98.0


def estimates(world, drawn):
    log = drawn.log
    predicted, expected = wrong_model(world, drawn)
    weights = {name: of(log) for name, of in WEIGHTS.items()}
    found = {
        "IPS": ips(log.earned, weights["cascade"]),
        "SNIPS": snips(log.earned, weights["cascade"]),
        "DR": cascade_doubly_robust(log.earned, log.slot_weights, predicted, expected),
    }
    if len(world.discounts) == 1:
        parts = (log.earned, weights["cascade"], predicted, expected)
        found["SNDR"] = doubly_robust(*parts, self_normalized=True)
    else:
        found["whole-list IPS"] = ips(log.earned, weights["whole_list"])
        found["whole-list SNIPS"] = snips(log.earned, weights["whole_list"])
    if world.repeats:
        found["item-position IPS"] = ips(log.earned, weights["independent"])
        found["item-position SNIPS"] = snips(log.earned, weights["independent"])
    return found


def repetition(given):
    """Say of one log which intervals hold the value, and how wide they are."""
    world, number, seed, value = given
    drawn = draw_log(world, number, seed)
    held, widths = {}, {}
    for name, estimate in estimates(world, drawn).items():
        low, high, _ = interval_of(estimate)
        held[name], widths[name] = low <= value <= high, high - low
    weights = WEIGHTS["cascade"](drawn.log)
    bounds = betting_sequence(drawn.log, weights)
    held["IPS sequence"] = bool(((bounds.low <= value) & (value <= bounds.high)).all())
    widths["IPS sequence"] = float(bounds.high[-1] - bounds.low[-1])
    described = overlap(weights[:, typical_slot(drawn.log)])
    return held, widths, described.effective_share, described.grade


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repetitions", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    rows = []
    with Pool(options.processes) as pool:
        for name, (number, settings) in WORLDS.items():
            world = make_world(11, **settings)
            value = true_value(world, 4_000_000)
            given = [(world, number, seed, value) for seed in range(options.repetitions)]
            results = pool.map(repetition, given, chunksize=10)
            rows += rows_of(name, results)
            print(*(f"{row.name} {row.value:.1f}" for row in rows if name in row.name), sep="\n")
    write_results(
        "off_policy_coverage",
        rows,
        notes=f"{options.repetitions} repetitions a world; a true 95% strays by 1.4 points (two "
        "standard errors). Sequences promise 95% or more. In the last world the command refuses "
        "or doubts the estimates; the share of repetitions in which it does is in the table.",
    )


def rows_of(name, results):
    held, widths = defaultdict(list), defaultdict(list)
    for inside, wide, _, _ in results:
        for estimator, one in inside.items():
            held[estimator].append(one)
            widths[estimator].append(wide[estimator])
    poor = "hardly" in name
    rows = []
    for estimator, found in held.items():
        share = 100 * float(np.mean(found))
        always = estimator.endswith("sequence")
        rows.append(
            Row(
                name=f"{name}: {estimator}",
                value=share,
                unit="%",
                goal=None if poor else ">= 95%" if always else "90-98%",
                met=None if poor else share >= 95 if always else LEAST <= share <= MOST,
            )
        )
    wider = np.median(widths["IPS sequence"]) / np.median(widths["IPS"])
    trusted = 100 * float(np.mean([grade == "good" for *_, grade in results]))
    effective = 100 * float(np.mean([share for *_, share, _ in results]))
    return [
        *rows,
        Row(name=f"{name}: effective lists", value=effective, unit="%"),
        Row(name=f"{name}: trusted", value=trusted, unit="%"),
        Row(name=f"{name}: sequence's width, in IPS intervals", value=float(wider), unit="x"),
    ]


if __name__ == "__main__":
    main()
