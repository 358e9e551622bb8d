"""The report of a whole run: made by its stage, and again after a look at test."""

import json
from pathlib import Path

from pipelines.engine.workspace import Workspace
from tests.integration.copies import Recsys
from tests.pipelines.pages.read import blocks_in


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


def test_another_look_at_the_test_split_is_counted(shop: Path, recsys: Recsys) -> None:
    ledger = shop / "ledger.jsonl"
    before = ledger.read_text()
    ledger.write_text(before * 12)
    again = ("run", shop.parent / "shop.toml", "--set", f"workspace={shop}", "--stage", "report")
    try:
        result = recsys(*again)
        assert f"report: {shop / 'report/report.html'}" in " ".join(result.output.split())
        page = (shop / "report/report.html").read_text(encoding="utf-8")
        assert f"looked at {12 * len(before.splitlines())} times" in page
    finally:
        ledger.write_text(before)
        assert recsys(*again).exit_code == 0
