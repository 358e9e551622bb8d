"""The page of one run, real and synthetic, whole and broken."""

import pytest

from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.run import build
from pipelines.pages.document import Table, Tiles, Words
from tests.pipelines.dashboard.documents import block_of, blocks_of, dashboard
from tests.pipelines.dashboard.planted import Model, world, write_workspace
from tests.pipelines.dashboard.synthetic_runs import write_run


def test_a_real_run_has_its_figures_costs_settings_ledger_and_files(context):
    page = build(context, Query())
    (run,) = [one for one in context.stores.runs() if one.kind == "workspace"]
    assert page.title == run.name
    assert page.notices == []
    table = block_of(page, Table, "intervals-test")
    row = next(row for row in table.rows if row[0] == "blend (fast), ranked")
    assert row[1] == pytest.approx(run.metrics["test/ranked/ndcg@10"], abs=1e-6)
    low, _, high = str(row[2]).split()
    assert float(low) <= float(str(row[1])) <= float(high)
    assert table.origins == [run.origin]
    settings = {row[0]: row[1] for row in block_of(page, Table, "settings").rows}
    assert settings["two_tower.embedding_dim"] == "24"
    tiles = {tile.label: tile.value for tile in block_of(page, Tiles).tiles}
    assert tiles["looks at the test split"] == "2"
    cost = block_of(page, Table, "cost")
    assert sum(float(str(row[1])) for row in cost.rows) == pytest.approx(run.seconds)
    files = [link.file for words in blocks_of(page.blocks, Words) for link in words.links]
    assert f"{run.key}/report/report.html" in files
    assert f"{run.key}/config.toml" in files


def test_a_bundle_leads_to_its_run_and_to_a_comparison(context):
    served, before = context.stores.bundles()
    page = build(context, Query.of(run=served.key))
    links = [(link.page, dict(link.parameters)) for link in block_of(page, Words).links]
    assert ("run", {"run": served.made_by}) in links
    assert ("summary", {"runs": (before.key, served.key)}) in links
    assert block_of(page, Table, "metrics-test").rows


def test_without_an_analysis_metrics_stand_without_intervals(tmp_path):
    path = write_run(tmp_path / "run")
    context = dashboard(tmp_path)
    page = build(context, Query())
    rows = block_of(page, Table, "metrics-test").rows
    assert rows[1] == ["blend (fast)", 0.12, 0.2]
    tiles = {tile.label: tile.value for tile in block_of(page, Tiles).tiles}
    assert tiles["all stages"] == "30.0 s"
    for damaged in ("{", "{}", "[]", '{"given": {}}', '{"primary_metric": NaN}'):
        (path / "evaluate/analysis.json").write_text(damaged, encoding="utf-8")
        page = build(context, Query())
        assert "metrics are shown without intervals" in page.notices[0], damaged
        assert block_of(page, Table, "metrics-test").rows == rows


def test_with_one_run_the_first_page_is_that_run(tmp_path):
    known = world(3, num_users=200, num_items=60)
    models = {"popularity": Model(seed=1), "blend": Model(seed=2)}
    write_workspace(tmp_path / "only", known, models)
    page = PAGES[0].build(dashboard(tmp_path), Query())
    assert page.title == "only"
    assert page.lead.startswith("Served is the blend")
    assert "no two measured runs" in page.notices[-1]
    tiles = {tile.label for tile in block_of(page, Tiles).tiles}
    assert {"NDCG@10 on test", "Over popularity", "Served worst"} <= tiles
    # It was measured on test alone.
    tables = [table.key for table in blocks_of(page.blocks, Table)]
    assert "intervals-test" in tables
    assert "intervals-validation" not in tables
