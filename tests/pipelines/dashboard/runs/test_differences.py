"""What differs between two runs, by dotted name, and what the metrics did."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.differences import build
from pipelines.pages.document import Page, Table
from tests.pipelines.dashboard.documents import block_of, blocks_of, dashboard
from tests.pipelines.dashboard.synthetic_runs import BEGAN, write_run, write_stage

BETTER = {"test": {"blend": {"ndcg@10": 0.15}, "blend_fast": {"ndcg@10": 0.12}}}


def pair(tmp_path: Path) -> Context:
    """Two runs, the later with a wider tower, other data, other code and better metrics."""
    write_run(tmp_path / "old", width=32)
    later = BEGAN + timedelta(days=1)
    new = write_run(tmp_path / "new", BETTER, width=64, began=later, data="e" * 64)
    versions = {"code": "other", "torch": "2.14.0"}
    write_stage(new / "train_two_tower", versions=versions)
    return dashboard(tmp_path)


def rows_of(page: Page, kind: str) -> list[Sequence[object]]:
    rows = [
        row for one in blocks_of(page.blocks, Table) if one.key == "differences" for row in one.rows
    ]
    return [row[1:] for row in rows if row[0] == kind]


def test_settings_data_code_and_metrics_that_differ_are_listed(tmp_path: Path) -> None:
    page = build(pair(tmp_path), Query())
    assert page.lead == (
        "From old to new: 1 setting differs (two_tower.embedding_dim); the data differ; code and "
        "versions differ."
    )
    assert rows_of(page, "setting") == [("two_tower.embedding_dim", "32", "64")]
    assert [row[0] for row in rows_of(page, "data")] == ["features"]
    assert rows_of(page, "code") == [
        ("torch", "2.13.0", "2.13.0, 2.14.0"),
        ("code of train_two_tower", "c", "other"),
    ]
    metrics = block_of(page, Table, "metrics-table").rows
    assert [(row[0], row[1]) for row in metrics] == [
        ("blend (fast)", "NDCG@10"),
        ("blend", "NDCG@10"),
    ]
    assert metrics[1][2:] == (0.13, 0.15, pytest.approx(0.02))


def test_bundles_of_a_real_workspace(context: Context) -> None:
    page = build(context, Query())
    settings = {row[0]: row[1:] for row in rows_of(page, "setting")}
    assert settings == {"seed": ("0", "1"), "two_tower.embedding_dim": ("16", "24")}
    assert "the data are the same; code and versions are the same" in page.lead


def test_a_bundle_and_its_run_have_the_same_settings(context: Context) -> None:
    (run,) = context.stores.workspaces()
    bundle = context.stores.bundles()[0]
    page = build(context, Query.of(runs=(bundle.key, run.key)))
    assert page.lead.endswith(
        "no setting that shapes results differs; the data are the same; code and versions are the "
        "same."
    )


def test_what_is_not_on_record_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    bare = write_run(tmp_path / "b", stages=("evaluate",), settings="")
    (bare / "evaluate/manifest.json").unlink()
    context = dashboard(tmp_path)
    runs = tuple(run.key for run in context.stores.runs())
    page = build(context, Query.of(runs=runs))
    assert "settings are not on record for both; the data are not on record for both" in page.lead
