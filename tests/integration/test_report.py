"""The report of a whole run: made by the stage, made again by its command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pipelines.engine.workspace import Workspace
from tests.pipelines.pages.read import blocks_in

Recsys = Callable[..., Result]


def test_run_writes_the_report_of_its_own_evaluation(shop: Path) -> None:
    page = (shop / "report/report.html").read_text(encoding="utf-8")
    numbers = json.loads((shop / "report/report.json").read_text(encoding="utf-8"))
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]["test"]
    assert set(numbers["models"]) == set(metrics)
    shown = {one["key"]: one for one in blocks_in(shop / "report/report.html")}
    rows = {row[0]: row[1:] for row in shown["every-metric"]["rows"]}
    assert rows["NDCG@10"] == [metrics[model]["ndcg@10"] for model in numbers["models"]]
    manifest = Workspace(shop).manifest("evaluate")
    assert manifest is not None
    assert manifest.output in page
    assert str(shop) not in page


def test_run_and_command_say_where_the_report_is(
    shop: Path, recsys: Recsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = recsys("run", "-c", shop.parent / "shop.toml", "-w", shop)
    assert f"report: {shop / 'report/report.html'}" in " ".join(result.output.split())
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    result = recsys("report", shop, "--out", tmp_path / "copy.html", "--open")
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(tmp_path / "copy.html")
    assert (tmp_path / "copy.html").read_bytes() == (shop / "report/report.html").read_bytes()
    assert shown == [(tmp_path / "copy.html").as_uri()]


def test_another_look_at_the_test_split_is_counted(shop: Path, recsys: Recsys) -> None:
    ledger = shop / "ledger.jsonl"
    before = ledger.read_text()
    ledger.write_text(before * 12)
    try:
        assert recsys("report", shop).exit_code == 0
        page = (shop / "report/report.html").read_text(encoding="utf-8")
        assert f"looked at {12 * len(before.splitlines())} times" in page
    finally:
        ledger.write_text(before)
        assert recsys("report", shop).exit_code == 0


def test_without_intervals_there_is_no_report_and_a_sentence_says_why(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    shutil.copytree(shop, tmp_path / "run", symlinks=True)
    options = ["--set", "evaluation.num_resamples=0", "-q"]
    run = recsys("run", "-c", shop.parent / "shop.toml", "-w", tmp_path / "run", *options)
    assert run.exit_code == 0, run.output
    assert "report:" not in run.output
    result = recsys("report", tmp_path / "run")
    assert result.exit_code == 2
    assert "evaluation.num_resamples = 0" in " ".join(result.output.split())


def test_a_folder_that_is_no_workspace_is_told(recsys: Recsys, tmp_path: Path) -> None:
    result = recsys("report", tmp_path)
    assert result.exit_code == 2
    assert "is not the workspace of a run" in " ".join(result.output.split())
