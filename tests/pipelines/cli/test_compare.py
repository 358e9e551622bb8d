import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.evaluate.compare import run_names
from pipelines.cli.main import app
from pipelines.engine.workspace import Workspace
from pipelines.evaluation.analysis import Analysis
from recsys.evaluation import significance


def evaluated(folder: Path, digest: str = "d") -> Path:
    """Write what compare reads of a run: 40 users, where b finds each item and a none."""
    artefact = folder / "evaluate"
    artefact.mkdir(parents=True)
    Analysis(orders={}, data_digest=digest, protocol="p", primary_metric="ndcg@10").save(artefact)
    rows = {"user_row": range(1, 41), "item_row": [5] * 40, "rank_a": [None] * 40}
    # c and d find the items of five users.
    five = [1] * 5 + [None] * 35
    ranks = {"rank_b": [1] * 40, "rank_c": five, "rank_d": five}
    frame = pl.DataFrame({**rows, **ranks}, schema_overrides={"rank_a": pl.Int64})
    for split in ("validation", "test"):
        frame.write_parquet(artefact / f"per_user_given_{split}.parquet")
    return folder


def recsys(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_models_of_one_run_are_compared_and_a_look_at_test_is_noted(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "x")
    command = ["compare", run, "--models", "a,b", "--metric", "recall@10", "--json"]
    (test,) = json.loads(recsys(*command).stdout)
    assert (test["difference"], test["significant"]) == (1.0, True)
    assert Workspace(run).ledger() == []
    recsys(*command, "--split", "test")
    (look,) = Workspace(run).ledger()
    assert (look["stage"], look["split"]) == ("compare", "test")
    assert (look["compared"], look["metrics"]) == (["x:a", "x:b"], ["recall@10"])


def test_runs_on_other_data_are_refused_with_both_digests_and_no_look(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / name, f"digest-{name}") for name in ("x", "y")]
    result = recsys("compare", *runs, "--models", "a", "--split", "test")
    assert result.exit_code == 3
    assert "digest-x" in result.output
    assert "digest-y" in result.output
    assert [Workspace(run).ledger() for run in runs] == [[], []]


def test_a_look_is_in_every_ledger_though_the_comparison_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(significance, "compare_runs", killed)
    runs = [evaluated(tmp_path / name) for name in ("x", "y")]
    assert recsys("compare", *runs, "--models", "a", "--split", "test").exit_code == 130
    assert [len(Workspace(run).ledger()) for run in runs] == [1, 1]


def test_the_correction_can_be_chosen(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "x")
    command = ["compare", run, "--models", "a,c,d", "--metric", "recall@10", "--json"]
    # Two equal p-values, about 1 / 32 each: Holm doubles both, Benjamini and Hochberg neither.
    for correction, factor in (("holm", 2), ("benjamini_hochberg", 1)):
        tests = json.loads(recsys(*command, "--correction", correction).stdout)
        assert [test["p_value"] for test in tests] == pytest.approx([1 / 32] * 2, abs=0.01)
        ratios = [test["adjusted_p_value"] / test["p_value"] for test in tests]
        assert ratios == pytest.approx([factor] * 2)
        assert [test["significant"] for test in tests] == [factor == 1] * 2
    assert recsys(*command, "--correction", "none").exit_code == 2


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [evaluated(tmp_path / name / "shop") / "evaluate" for name in ("may", "june")]
    assert run_names([*folders, tmp_path / "other"]) == ["may/shop", "june/shop", "other"]
    command = ["compare", *[folder.parent for folder in folders], "--models", "a", "--json"]
    tests = json.loads(recsys(*command).stdout)
    assert {(test["baseline"], test["candidate"]) for test in tests} == {
        ("may/shop:a", "june/shop:a")
    }


def test_ledger_lists_every_look(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert "no look at a test split yet" in recsys("ledger", tmp_path).output
    scores = {"popularity": 0.0312, "blend": float("nan")}
    look = {"time": "2026-01-02T03:04:05+00:00", "stage": "evaluate", "tie_order": "given"}
    workspace.append_to_ledger({**look, "config": "0123456789ab", "ndcg@10": scores})
    workspace.append_to_ledger({**look, "stage": "compare", "compared": ["may:a", "june:b"]})
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"split": "te')
    shown = recsys("ledger", tmp_path).output
    assert "looks at the test split: 3" in shown
    assert "2026-01-02 03:04:05" in shown
    assert "popularity 0.0312" in shown
    assert "may:a against june:b" in shown
    assert "cut off by a kill" in shown
    looks = json.loads(recsys("ledger", tmp_path, "--json").stdout, parse_constant=pytest.fail)
    assert looks[0]["ndcg@10"] == {"popularity": 0.0312, "blend": None}
    assert [look.get("stage") for look in looks] == ["evaluate", "compare", None]
