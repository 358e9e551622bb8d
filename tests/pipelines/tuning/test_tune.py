"""``recsys tune`` on a small log: it finds what is planted, goes on after a kill, refuses."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.tuning.sampler import Sampler
from pipelines.tuning.space import parse_space

CONFIG = """
preset = "shop"
auto.enabled = false
workspace = "run"
[data]
events = "events.csv"
[two_tower_training]
enabled = false
[item_to_item]
window = 1
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Each event is the neighbour of the one three before it, and of none between."""
    random = np.random.default_rng(0)
    lines = ["user_id,item_id,event_time"]
    for user in range(150):
        items = random.choice(60, 3, replace=False).tolist()
        while len(items) < 9:
            items.append((items[-3] + 1) % 60)
        times = range(1_700_000_000, 1_700_000_900, 100)
        lines += [f"u{user},i{item},{time}" for item, time in zip(items, times, strict=True)]
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "shop.toml").write_text(CONFIG)
    return tmp_path


def tune(shop: Path, *arguments: str) -> tuple[int, str, str]:
    given = ["tune", "-c", str(shop / "shop.toml"), "-w", str(shop / "run"), *arguments]
    result = CliRunner().invoke(app, given)
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_a_planted_optimum_is_found_and_worth_what_is_said(shop: Path) -> None:
    over = ["--over", "item_to_item.window=1..9"]
    code, printed, said = tune(shop, *over, "--trials", "6")
    assert code == 0, said
    document = json.loads((shop / "run" / "tune" / "tune.json").read_text())
    assert document["row"] == "item_to_item"
    assert document["split"] == "validation"
    assert document["present"]["values"] == {"item_to_item.window": 1}
    assert document["best"]["values"]["item_to_item.window"] >= 3
    assert document["best"]["metric"] > 1.2 * document["present"]["metric"]
    assert document["difference"]["decision"] == "better"
    gain = document["best"]["metric"] - document["present"]["metric"]
    assert math.isclose(document["difference"]["value"], gain, abs_tol=1e-6)
    assert "--set 'item_to_item.window=" in printed
    assert "window = " in (shop / "run" / "tune" / "best.toml").read_text()
    # Validation alone was looked at.
    assert not list((shop / "run" / "tune").rglob("ledger.jsonl"))


def test_a_second_call_goes_on_and_a_killed_trial_is_made_again(shop: Path) -> None:
    over = ["--over", "item_to_item.window=2..30"]
    assert tune(shop, *over, "--trials", "3")[0] == 0
    journal = shop / "run" / "tune" / "trials.jsonl"
    first = journal.read_text().splitlines()
    assert len(first) == 4
    journal.write_text("\n".join(first[:3]) + "\n" + first[3][:20])
    code, printed, said = tune(shop, *over, "--trials", "5", "--json")
    assert code == 0, said
    assert said.count("trial ") == 3
    numbers = [one["number"] for one in json.loads(printed)["trials"]]
    assert numbers == [0, 1, 2, 3, 4]
    assert tune(shop, *over, "--trials", "5", "--quiet")[2] == ""


def test_values_that_a_model_refuses_are_failed_trials(shop: Path) -> None:
    code, printed, said = tune(
        shop, "--over", "item_to_item.window=5,-1", "--trials", "4", "--out", str(shop / "there")
    )
    assert code == 0, said
    assert re.search(r"failed: .*window must be >= 1, got -1", said)
    assert re.search(r"\d trials, \d failed", printed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--over", "item_to_item.windo=2,3"], "did you mean 'item_to_item.window'"),
        (["--over", "sequence.dropout=0.0..0.5"], "this configuration leaves out"),
        (["--over", "data.events=a,b"], "what prepares the data is the same"),
        (
            ["--over", "item_to_item.window=2..9", "--set", 'evaluation.primary_metric="hit@7"'],
            "primary_metric",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused(shop: Path, arguments: list[str], words: str) -> None:
    code, _, said = tune(shop, *arguments)
    assert code == 2
    assert words in said


def test_trials_of_other_settings_are_not_mixed(shop: Path) -> None:
    over = ["--over", "item_to_item.window=2..9"]
    assert tune(shop, *over, "--trials", "2")[0] == 0
    code, _, said = tune(shop, *over, "--trials", "3", "--set", "item_to_item.max_history=7")
    assert code == 2
    assert "holds trials with another recipe" in said


def test_the_sampler_learns_where_values_are_good() -> None:
    sampler = Sampler(parse_space(["ease.a=0.0..1.0"]), seed=0)
    for place in range(20):
        sampler.learn({"ease.a": place / 20}, -((place / 20 - 0.7) ** 2))
    sampler.learn({"ease.b": 3}, 9.0)
    proposed = []
    for number in range(10):
        proposed.append(sampler.propose(number)["ease.a"])
        sampler.end(number, None if number == 4 else -((proposed[-1] - 0.7) ** 2))
    near = [value for value in proposed if 0.5 < value < 0.9]
    assert len(near) >= 6
