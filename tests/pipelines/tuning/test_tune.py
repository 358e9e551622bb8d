"""``recsys tune`` on a small log: it finds the planted optimum, resumes and refuses."""

import json
import math
import re
from pathlib import Path

import numpy as np
import optuna
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app

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


def test_a_planted_optimum_is_found_and_a_later_call_goes_on(shop: Path) -> None:
    over, folder = ["--over", "item_to_item.window=1..9"], shop / "run" / "tune"
    code, printed, said = tune(shop, *over, "--trials", "6")
    assert code == 0, said
    document = json.loads((folder / "tune.json").read_text())
    assert document["row"] == "item_to_item"
    assert document["split"] == "validation"
    assert document["present"]["values"] == {"item_to_item.window": 1}
    assert document["best"]["values"]["item_to_item.window"] >= 3
    assert document["best"]["metric"] > 1.2 * document["present"]["metric"]
    assert document["difference"]["decision"] == "better"
    gain = document["best"]["metric"] - document["present"]["metric"]
    assert math.isclose(document["difference"]["value"], gain, abs_tol=1e-6)
    assert "--set 'item_to_item.window=" in printed
    assert "window = " in (folder / "best.toml").read_text()
    # Validation alone was looked at.
    assert not list(folder.rglob("ledger.jsonl"))
    # A trial that a kill left running does not count.
    place = f"sqlite:///{folder / 'trials.db'}"
    optuna.load_study(study_name="tune", storage=place).ask()
    code, printed, said = tune(shop, *over, "--trials", "8", "--json")
    assert (code, said.count("trial ")) == (0, 2), said
    trials = json.loads(printed)["trials"]
    assert trials[:6] == document["trials"]
    assert [one["number"] for one in trials] == [0, 1, 2, 3, 4, 5, 7, 8]
    assert tune(shop, *over, "--trials", "8", "--quiet")[2] == ""
    code, _, said = tune(shop, *over, "--trials", "9", "--set", "item_to_item.max_history=7")
    assert code == 2
    assert "holds trials with another recipe" in said


def test_values_that_a_model_refuses_are_failed_trials(shop: Path) -> None:
    code, printed, said = tune(
        shop, "--over", "item_to_item.window=5,-1", "--trials", "4", "--out", str(shop / "there")
    )
    assert code == 0, said
    assert re.search(r"failed: .*window must be >= 1, got -1", said)
    assert re.search(r"\d trials, \d failed", printed)


def test_what_cannot_be_tried_is_refused(shop: Path) -> None:
    hit = ["--over", "item_to_item.window=2..9", "--set", 'evaluation.primary_metric="hit@7"']
    for arguments, words in (
        (["--over", "item_to_item.windo=2,3"], "did you mean 'item_to_item.window'"),
        (["--over", "sequence.dropout=0.0..0.5"], "this configuration leaves out"),
        (hit, "primary_metric"),
    ):
        code, _, said = tune(shop, *arguments)
        assert code == 2
        assert words in said
