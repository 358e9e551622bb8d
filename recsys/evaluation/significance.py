"""P-values of paired tests, and their correction for many tests at a time.

If two models are equally good, each user's difference is as likely to have either sign (Fisher,
1935; for retrieval: Smucker, Allan and Carterette, CIKM 2007). The sum of differences with random
signs is nearly normal: of equal models with 100 to 2,000 users 4.0% to 5.4% are called different
at 5%. If at most twelve users' outcomes differ, all signs are counted; equal sums count half (the
mid-p value, Lancaster, 1961).

Many tests at once find differences by luck, so p-values are adjusted: Holm (1979) bounds the
chance of a single false claim.

Axes: U users, T tests.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from recsys.evaluation.intervals import Floats

MOST_COUNTED = 12
"""Users whose signs are all counted, 4,096 ways."""


def p_value(differences: Floats) -> float:
    """Return the two-sided p-value of "either sign is as likely", of one value a user, [U]."""
    changed = differences[differences != 0]
    if not len(changed):
        return 1.0
    observed = abs(float(changed.sum()))
    if len(changed) > MOST_COUNTED:
        return math.erfc(observed / math.sqrt(2 * float((changed**2).sum())))
    sums = np.abs(np.array(list(product((-1, 1), repeat=len(changed)))) @ changed)
    equal = np.isclose(sums, observed)
    return float(((sums > observed) & ~equal).mean() + equal.mean() / 2)


def holm(p_values: Floats) -> Floats:
    """Adjust p-values so that the chance of any false claim is bounded (Holm, 1979), [T]."""
    order = np.argsort(p_values, kind="stable")
    steps = np.arange(len(p_values), 0, -1) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
