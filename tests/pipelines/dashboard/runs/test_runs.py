"""The page of all runs: its table, searches and order."""

from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.runs import build, list_rows
from pipelines.pages.document import LinkedCell, Table, Window
from tests.pipelines.dashboard.documents import block_of, dashboard, texts
from tests.pipelines.dashboard.synthetic_runs import BEGAN, METRICS, write_bundle, write_run


@pytest.fixture
def three(tmp_path: Path) -> Context:
    """Three runs on two data sets, the last one half written, and a refused bundle."""
    for number, (dataset, width) in enumerate((("ml", 32), ("ml", 64), ("beauty", 64))):
        value = {"ndcg@10": 0.1 + 0.01 * number, "recall@10": 0.2, "ndcg@5": 0.05}
        metrics = {"test": {"blend_fast": value}, "validation": {"blend_fast": value}}
        path = tmp_path / f"run-{number}"
        began = BEGAN + timedelta(days=number)
        write_run(path, metrics, dataset=dataset, width=width, began=began)
    (tmp_path / "run-2/evaluate/metrics.json").unlink()
    write_bundle(tmp_path / "run-0/bundles", "v1", METRICS["test"], outcome="refused")
    return dashboard(tmp_path)


def shown(context: Context, search: str = "", order: int | None = None) -> list[str]:
    window = Window(search=search, order_by=order, descending=order is not None)
    return [str(texts(row)[0]) for row in list_rows(context, Query(), window).rows]


def test_the_table_has_every_run_newest_first(three):
    page = build(three, Query())
    table = block_of(page, Table, "runs")
    labels = [column.label for column in table.columns]
    assert labels[:6] == ["Run", "When", "Data", "NDCG@10", "Recall@10", "NDCG@5"]
    assert page.lead.startswith("4 runs and bundles")
    assert "1 are unfinished" in page.lead
    rows = list_rows(three, Query(), Window())
    assert (rows.total, rows.found) == (4, 4)
    assert [texts(row)[0] for row in rows.rows] == ["run-2", "run-1", "run-0", "v1"]
    assert texts(rows.rows[1])[1:5] == ["2026-11-02T12:00:30Z", "ml", 0.11, 0.2]
    link = rows.rows[0][0]
    assert isinstance(link, LinkedCell)
    assert link.link.page == "run"


SEARCHES = {
    "beauty": ["run-2"],
    "RUN-1": ["run-1"],
    "two_tower.embedding_dim=64": ["run-2", "run-1"],
    "embedding_dim=32": ["run-0"],
    "embedding_dim=64 ml": ["run-1"],
    "decision=refused": ["v1"],
    "unfinished": ["run-2"],
    "no.such=1": [],
    "<script>": [],
}


def test_words_and_settings_find_runs(three):
    assert {search: shown(three, search) for search in SEARCHES} == SEARCHES


def test_rows_are_ordered_by_a_column_those_without_a_value_last(three):
    assert shown(three, order=3) == ["v1", "run-1", "run-0", "run-2"]
    assert shown(three, order=0) == ["v1", "run-2", "run-1", "run-0"]
