import json
from pathlib import Path

import polars as pl
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from pipelines.engine.workspace import Workspace
from pipelines.evaluation.analysis import Analysis
from recsys.evaluation import paired


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


def test_models_of_one_run_are_compared_and_a_look_at_test_is_noted(tmp_path):
    run = evaluated(tmp_path / "x")
    command = ["compare", run, "--models", "a,b", "--metric", "recall@10", "--json"]
    (test,) = json.loads(recsys(*command).stdout)
    assert (test["difference"], test["significant"]) == (1.0, True)
    assert Workspace(run).ledger() == []
    recsys(*command, "--split", "test")
    (look,) = Workspace(run).ledger()
    assert (look["stage"], look["split"]) == ("compare", "test")
    assert (look["compared"], look["metrics"]) == (["x:a", "x:b"], ["recall@10"])


def test_runs_on_other_data_are_refused_with_both_digests_and_no_look(tmp_path):
    runs = [evaluated(tmp_path / name, f"digest-{name}") for name in ("x", "y")]
    result = recsys("compare", *runs, "--models", "a", "--split", "test")
    assert result.exit_code == 3
    assert "digest-x" in result.output
    assert "digest-y" in result.output
    assert [Workspace(run).ledger() for run in runs] == [[], []]
    path = runs[0] / "evaluate/per_user_given_test.parquet"
    other = evaluated(tmp_path / "z", "digest-x") / "evaluate/per_user_given_test.parquet"
    pl.read_parquet(path).head(39).write_parquet(other)
    result = recsys("compare", runs[0], tmp_path / "z", "--models", "a", "--split", "test")
    assert result.exit_code == 3
    assert "40 and 39 rows" in " ".join(result.output.split())


def test_runs_in_folders_of_one_name_are_told_apart_and_a_killed_comparison_is_a_look(
    tmp_path, monkeypatch
):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    runs = [evaluated(tmp_path / name / "shop") for name in ("may", "june")]
    command = ["compare", *runs, "--models", "a", "--json"]
    test, _ = json.loads(recsys(*command).stdout)
    assert (test["baseline"], test["candidate"]) == ("may/shop:a", "june/shop:a")
    monkeypatch.setattr(paired, "compare_models", killed)
    assert recsys(*command, "--split", "test").exit_code == 130
    assert [len(Workspace(run).ledger()) for run in runs] == [1, 1]
