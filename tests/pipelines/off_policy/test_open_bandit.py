"""Open Bandit's policies on each other's logs."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from pipelines.off_policy.evaluation import OffPolicyConfig
from pipelines.off_policy.summary import find_row
from tests.benchmarks.evaluation.open_bandit import evaluate_open_bandit

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")
COLUMNS = "timestamp,item_id,position,click,propensity_score"
FEATURES = tuple(f"user_feature_{number}" for number in range(4))


def write_log(folder, policy, shown, campaign="men"):
    """Write impressions: (item, position, click, propensity) each."""
    lines = [f",{COLUMNS},{','.join(FEATURES)}"]
    for place, (item, position, click, propensity) in enumerate(shown):
        moment = f"2019-11-24 00:{place // 60:02}:{place % 60:02}.5+00:00"
        lines.append(f"{place},{moment},{item},{position},{click},{propensity},a,b,c,d")
    with gzip.open(folder / f"{policy}_{campaign}.csv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path):
    # Two items in one position: random shows both alike, bts the second in three of four cases.
    random = [(place % 2, 1, int(place % 4 == 1), 0.5) for place in range(80)]
    bts = [(int(place % 4 > 0), 1, 0, 0.2 + 0.001 * place) for place in range(80)]
    write_log(tmp_path, "random", random)
    write_log(tmp_path, "bts", bts)
    return tmp_path


def test_a_policy_is_valued_by_how_often_it_shows_each_item(folder):
    document = evaluate_open_bandit(folder, "bts", OffPolicyConfig(), ["men"])
    # The second item is clicked in half of its impressions: 0.75 * 0.5.
    for name in ("ips", "snips"):
        assert find_row(document, name)["value"] == pytest.approx(0.375)
    assert find_row(document, "logging")["value"] == pytest.approx(0.25)
    assert find_row(document, "ips")["gain"] == pytest.approx(0.125)
    assert document["truth"]["value"] == 0
    # Weights of 1.5 and 0.5: 80 * 1 / 1.25.
    assert document["overlap"]["cascade"]["effective"] == pytest.approx(64)


def test_a_policy_that_never_changes_has_its_own_propensities(folder):
    document = evaluate_open_bandit(folder, "random", OffPolicyConfig(), ["men"])
    log = np.array([0.2 + 0.001 * place for place in range(80)])
    assert document["overlap"]["cascade"]["mean"] == pytest.approx((0.5 / log).mean())
    assert document["logging"] == "bts"


@pytest.mark.mirror
@pytest.mark.skipif(
    MIRROR is None, reason="needs real data sets: RECSYS_DATA_MIRROR=FOLDER make test"
)
@pytest.mark.parametrize("policy", ["random", "bts"])
@pytest.mark.parametrize("campaign", ["all", "men", "women"])
def test_intervals_hold_what_the_policy_really_earned(policy, campaign):
    folder = Path(str(MIRROR)) / "open-bandit"
    document = evaluate_open_bandit(folder, policy, OffPolicyConfig(), [campaign])
    row = find_row(document, "dr")
    assert row["low"] < document["truth"]["value"] < row["high"]
    refused = (policy, campaign) == ("random", "women")
    assert (row["trust"] == "none") == refused
