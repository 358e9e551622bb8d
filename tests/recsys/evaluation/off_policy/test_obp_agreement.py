"""Our estimates are those of obp 0.4.1; its numbers are made by benchmark_off_policy_agreement."""

import json
import os
from pathlib import Path

import pytest

from tests.recsys.evaluation.off_policy.obp_inputs import (
    CAMPAIGNS,
    POLICIES,
    open_bandit_actions,
    synthetic_actions,
    synthetic_slates,
    values_of_actions,
    values_of_slates,
)

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")
NUMBERS = json.loads(Path(__file__).with_name("obp_numbers.json").read_text())


def agrees(found, name):
    assert found.keys() == NUMBERS[name].keys()
    for estimator, value in NUMBERS[name].items():
        assert found[estimator] == pytest.approx(value, abs=1e-9, rel=0), (name, estimator)


def test_single_actions_agree_on_a_synthetic_log():
    agrees(values_of_actions(synthetic_actions()), "synthetic actions")


def test_slates_agree_on_a_synthetic_log():
    agrees(values_of_slates(synthetic_slates()), "synthetic slates")


@pytest.mark.mirror
@pytest.mark.skipif(
    MIRROR is None, reason="needs real data sets: RECSYS_DATA_MIRROR=FOLDER make test"
)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_single_actions_agree_on_open_bandit(policy, campaign):
    folder = Path(str(MIRROR)) / "open-bandit"
    found = values_of_actions(open_bandit_actions(folder, policy, campaign))
    agrees(found, f"open-bandit {policy} {campaign}")
