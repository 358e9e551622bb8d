"""Time diversity, calibration, caps and exploration of one list, and how exact its chances are.

Made-up candidates: normal scores, float32 vectors in 384 dimensions, 20 categories, counts of
events from 1 to a million. Rules (diversity, calibration and caps) may cost 0.5 ms together at 200
candidates and a list of 20. One thread.
"""

from __future__ import annotations

import numpy as np

from recsys.reranking.calibration import calibrated
from recsys.reranking.caps import Caps, capped
from recsys.reranking.diversity import dpp, mmr
from recsys.reranking.exploration import best_chances, epsilon_greedy, plackett_luce, thompson
from tests.benchmarks.harness import Row, alternating_ms, command_line, write_results

SIZES = ((200, 20), (500, 100))
EXPLORED = 100
DRAWS = 1_000_000


def times(number: int, k: int, seconds: float) -> list[Row]:
    """Time each step for one size."""
    random = np.random.default_rng(0)
    scores = np.sort(random.normal(size=number).astype(np.float32))[::-1].copy()
    vectors = random.normal(size=(number, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    categories = random.integers(0, 20, number)
    classes, target = np.eye(20)[categories], random.dirichlet(np.ones(20))
    groups = [[(0, int(category))] for category in categories]
    widths = 1 / np.sqrt(10 ** random.uniform(0, 6, number))
    some = slice(0, EXPLORED)
    steps = {
        "MMR": lambda: mmr(scores, vectors, k, 0.5),
        "DPP": lambda: dpp(scores, vectors, k, 0.5),
        "calibration": lambda: calibrated(scores, classes, target, k, 0.5),
        "caps": lambda: capped(np.arange(number), Caps(groups, [3]), k),
        "epsilon": lambda: epsilon_greedy(scores[some], k, 0.1, random),
        "Plackett-Luce": lambda: plackett_luce(scores[some], k, 0.1, random),
        "Thompson": lambda: thompson(scores[some], widths[some], k, random),
    }
    case = f"{number} candidates, list of {k}"
    found = alternating_ms(steps, seconds=seconds)
    rows = [Row(name=f"{case}: {name}", value=value, unit="ms") for name, value in found.items()]
    rules = sum(found[name] for name in ("DPP", "calibration", "caps"))
    bar = 0.5 if k == 20 else None
    rows.append(Row(name=f"{case}: DPP, calibration, caps", value=rules, unit="ms", at_most=bar))
    return rows


def exactness() -> Row:
    """Compare chances with what a million draws of normals of very different widths show."""
    means = np.array([1.0, 0.999, 0.9, 0.5, 0.2])
    widths = np.array([0.0005, 0.001, 1.0, 0.03, 1.0])
    draws = means + widths * np.random.default_rng(3).normal(size=(DRAWS, len(means)))
    shares = np.bincount(draws.argmax(1), minlength=len(means)) / DRAWS
    seen = shares > 0.05
    error = 100 * np.abs(best_chances(means, widths)[seen] / shares[seen] - 1).max()
    name = "Thompson, largest error of a chance above 5% against 1M draws"
    return Row(name=name, value=float(error), unit="%", at_most=1.0)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each size")
    options = parser.parse_args()
    rows = [row for number, k in SIZES for row in times(number, k, options.seconds)]
    write_results("lists", [*rows, exactness()])


if __name__ == "__main__":
    main()
