"""The page of one run, real and synthetic, whole and broken."""

import json

import pytest

from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.run import build
from pipelines.pages.document import Table, Tiles, Words
from tests.pipelines.dashboard.documents import block_of, blocks_of, dashboard, lines_of, table
from tests.pipelines.dashboard.planted import Model, world, write_workspace
from tests.pipelines.dashboard.synthetic_runs import write_json, write_run


def test_a_real_run_has_its_figures_costs_settings_ledger_and_files(context):
    page = build(context, Query())
    (run,) = [one for one in context.stores.runs() if one.kind == "workspace"]
    assert page.title == run.name
    assert page.notices == []
    intervals = table(page, "intervals-test")
    row = next(row for row in intervals.rows if row[0] == "blend (fast), ranked")
    assert row[1] == pytest.approx(run.metrics["test/ranked/ndcg@10"], abs=1e-6)
    low, _, high = str(row[2]).split()
    assert float(low) <= float(str(row[1])) <= float(high)
    assert intervals.origins == [run.origin]
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
    tables = [one.key for one in blocks_of(page.blocks, Table)]
    assert "intervals-test" in tables
    assert "intervals-validation" not in tables


def level(size: int, used: int) -> dict[str, object]:
    near = {"neighbour_agreement": 0.5, "agreement_by_chance": 0.1, "num_prefixes": used}
    counted = {"size": size, "num_used": used, "utilisation": used / size, "perplexity": 3.0}
    return {**near, **counted, "entropy_bits": 1.6, "purity": None, "purity_by_chance": None}


def test_semantic_ids_are_those_of_the_report(tmp_path):
    """Of 8 items 7 have an ID of two codes and one that resolves collisions."""
    levels = [level(4, 3), level(4, 4)]
    quality = {
        **{"version": "abcdef0123", "num_items": 7, "groups_before": [[2, 2]]},
        **{"levels": levels, "published": [*levels, level(2, 2)], "moved": [0.0, 0.25]},
        **{"collisions_before": 2, "largest_group": 2, "collisions_after": 1},
        **{"reconstruction_error": 0.2, "errors_by_level": [0.5, 0.2], "published_error": 0.2},
    }
    shares = {"per_level": [0.75, 0.5, 1], "per_prefix": [0.75, 0.5, 0.5]}
    kept = {"num_items": 6, "full": 0.5, **shares}
    report = {"version": "abcdef0123", "parent": "0123456789", "how": "aligned", "num_new": 1}
    counts = {"num_items": 8, "num_with_id": 7, "num_without_content": 1}
    path = write_run(tmp_path / "run") / "build_semantic_ids/semantic_ids_report.json"
    write_json(path, {**report, **counts, "quality": quality, "kept": kept})
    page = build(dashboard(tmp_path), Query())
    rows = table(page, "semantic-id-levels").rows
    assert [row[0] for row in rows] == ["level 1", "level 2", "level 3, resolves collisions"]
    assert rows[1][1:] == (4, 4, 1.0, 3.0, 4, 0.5, 0.1, 0.2, 0.25, 0.5, 0.5)
    assert rows[2][8:] == (None, None, 1.0, 0.5)
    said = lines_of(page, "semantic-ids")
    assert said.startswith("7 of 8 items have an ID of 3 codes; 1 have no content")
    assert "abcdef0123 were aligned, with 1 new" in said
    assert "gave 2 items the codes of another one; 1 share an ID" in said
    assert "Of 6 items that version 0123456789 has too, 50.0% kept their ID" in said
    del quality["moved"]
    for damaged in (json.dumps({**report, **counts, "quality": quality, "kept": kept}), "{"):
        path.write_text(damaged)
        assert "semantic IDs cannot be read" in build(dashboard(tmp_path), Query()).notices[-1]
    path.write_text('{"method": "none"}')
    assert lines_of(build(dashboard(tmp_path), Query()), "semantic-ids") == ""
