"""What ``recsys tune`` reads and refuses, and that it finds a planted optimum and resumes."""

import json
import math
import re
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Real
from optuna.distributions import IntDistribution as Whole
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.tuning.space import find_row, parse_space


def test_ranges_and_lists_are_read():
    known = {
        "ease.max_events=100..900": Whole(100, 900),
        "two_tower.max_history=1..100": Whole(1, 100, log=True),
        "sequence.dropout=0.0..0.5": Real(0.0, 0.5),
        "two_tower_training.schedule.learning_rate=1e-4..1e-2": Real(1e-4, 1e-2, log=True),
        "sequence.dim=32, 64,32": OneOf((32, 64)),
        "blend.method=linear,fusion": OneOf(("linear", "fusion")),
        "two_tower.bias=true,false": OneOf((True, False)),
    }
    for text, expected in known.items():
        assert parse_space([text]) == {text.split("=")[0]: expected}


def test_what_is_no_space_is_refused():
    for texts, words in (
        ([], "name at least one setting"),
        (["ease.l2"], r"write section\.key=low\.\.high"),
        (["ease.l2="], r"write section\.key=low\.\.high"),
        (["ease.l2=1,,3"], "a value is missing"),
        (["ease.l2=3,3"], "leaves nothing to choose"),
        (["ease.l2=3..3"], "the smaller first"),
        (["ease.l2=a..b"], "needs two numbers"),
        (["data.events=a,b"], "what prepares the data is the same"),
        (["ease=1,2"], "trials vary keys of"),
        (["ease.l2=1..3", "ease.l2=4,5"], r"names ease\.l2 more than once"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_space(texts)


def test_settings_of_one_model_are_measured_on_it_and_others_on_the_blend():
    of_one = parse_space(["sequence.dropout=0.0..0.5", "sequence_training.num_steps=1..9"])
    assert find_row(of_one) == "sequence"
    assert find_row(parse_space(["sequence.dropout=0.0..0.5", "ease.a=1,2"])) == "blend_fast"


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
    given = ["tune", str(shop / "shop.toml"), "--set", f"workspace={shop / 'run'}", *arguments]
    result = CliRunner().invoke(app, given)
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_a_planted_optimum_is_found_and_a_later_call_goes_on(shop):
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


def test_values_that_a_model_refuses_are_failed_trials(shop):
    code, printed, said = tune(
        shop, "--over", "item_to_item.window=5,-1", "--trials", "4", "--out", str(shop / "there")
    )
    assert code == 0, said
    assert re.search(r"failed: .*window must be >= 1, got -1", said)
    assert re.search(r"\d trials, \d failed", printed)


def test_what_cannot_be_tried_is_refused(shop):
    hit = ["--over", "item_to_item.window=2..9", "--set", 'evaluation.primary_metric="hit@7"']
    for arguments, words in (
        (["--over", "item_to_item.windo=2,3"], "did you mean 'item_to_item.window'"),
        (["--over", "sequence.dropout=0.0..0.5"], "this configuration leaves out"),
        (hit, "primary_metric"),
    ):
        code, _, said = tune(shop, *arguments)
        assert code == 2
        assert words in said
