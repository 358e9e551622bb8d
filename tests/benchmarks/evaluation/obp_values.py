"""Print obp's estimates of the arrays in a file; runs in obp's environment, with numpy alone.

PYTHON_OF_OBP tests/benchmarks/evaluation/obp_values.py FILE.npz
"""

import json
import sys

import numpy as np
from obp.ope import (
    DirectMethod,
    DoublyRobust,
    InverseProbabilityWeighting,
    SelfNormalizedDoublyRobust,
    SelfNormalizedInverseProbabilityWeighting,
    SlateIndependentIPS,
    SlateRewardInteractionIPS,
    SlateStandardIPS,
    SwitchDoublyRobust,
)


def of_actions(given):
    estimators = {
        "ipw": InverseProbabilityWeighting(),
        "snipw": SelfNormalizedInverseProbabilityWeighting(),
        "dm": DirectMethod(),
        "dr": DoublyRobust(),
        "sndr": SelfNormalizedDoublyRobust(),
        "switch-dr": SwitchDoublyRobust(tau=float(given["switch_at"])),
    }
    shared = {name: given[name] for name in ("reward", "action", "pscore", "action_dist")}
    shared |= {
        "position": given["position"],
        "estimated_rewards_by_reg_model": given["predictions"],
    }
    return {
        name: float(estimator.estimate_policy_value(**shared))
        for name, estimator in estimators.items()
    }


def of_slates(given):
    number, slots = given["reward"].shape
    logged, evaluated = given["logged"], given["evaluated"]

    def whole(values):
        return np.repeat(values.prod(1), slots)

    shared = {
        "slate_id": np.repeat(np.arange(number), slots),
        "reward": given["reward"].ravel(),
        "position": np.tile(np.arange(slots), number),
    }
    found = {
        "sips": SlateStandardIPS(len_list=slots).estimate_policy_value(
            **shared, pscore=whole(logged), evaluation_policy_pscore=whole(evaluated)
        ),
        "iips": SlateIndependentIPS(len_list=slots).estimate_policy_value(
            **shared,
            pscore_item_position=logged.ravel(),
            evaluation_policy_pscore_item_position=evaluated.ravel(),
        ),
        "rips": SlateRewardInteractionIPS(len_list=slots).estimate_policy_value(
            **shared,
            pscore_cascade=logged.cumprod(1).ravel(),
            evaluation_policy_pscore_cascade=evaluated.cumprod(1).ravel(),
        ),
    }
    return {name: float(value) for name, value in found.items()}


if __name__ == "__main__":
    arrays = np.load(sys.argv[1])
    print(json.dumps(of_slates(arrays) if "logged" in arrays else of_actions(arrays)))
