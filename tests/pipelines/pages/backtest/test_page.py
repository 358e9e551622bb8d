"""The page of a backtest, by numbers that can be added up by hand."""

import json

import pytest
from typer.testing import CliRunner

from pipelines.backtest import backtest as command
from pipelines.cli.main import app
from pipelines.pages.backtest import backtest_page, state_results
from pipelines.pages.backtest_numbers import fit_seconds
from pipelines.pages.document import Chart, Table
from pipelines.pages.file import write_page
from tests.pipelines.dashboard.documents import block_of, blocks_of
from tests.pipelines.pages.backtest.document import document
from tests.pipelines.pages.read import blocks_in

HOSTILE = '<img src=x onerror="window.broken=1"></script><script>window.broken=1</script>'


def test_words_compare_policies_ages_sources_and_peers():
    lead, *words = state_results(backtest_page(document()))
    assert "0.2000 retrained before every step, 0.1600 (-20.0%) never retrained" in lead
    said = "\n".join(words)
    # 5% are lost at 10 days and 25% at 20.
    assert "Models 30 days old have lost 50.0%; the loss reaches 10% after 12 days" in said
    assert "above its best source, EASE, by 0.0325 (± 0.0098); on 1 of 4 steps" in said
    assert "The best peer, EASE (numpy), has 0.1000; the served list is above it by 0.1000" in said


def test_one_policy_without_peers_has_less_to_say():
    alone = document()
    alone["policies"] = {"never": "left as they are"}
    for part in ("rows", "summary", "slices"):
        alone[part] = [one for one in alone[part] if one["policy"] == "never"]
    alone["leads"] = []
    page = backtest_page(alone)
    assert "0.1600 never retrained" in page.lead
    assert {one.key for one in blocks_of(page.blocks, Chart)} == {"policies", "sources"}


def test_cost_leaves_out_the_step_that_all_policies_share():
    assert fit_seconds(document(), "full") == 90.0
    assert fit_seconds(document(), "never") == 0.0


def test_tables_hold_what_the_document_holds():
    made = document()
    page = backtest_page(made)
    lists = {row[:2]: row for row in block_of(page, Table, "lists").rows}
    for one in made["summary"]:
        row = lists[one["policy"], {"ease": "EASE"}.get(one["row"], one["row"])]
        low, high = one["intervals"]["ndcg@10"]
        assert row[2:4] == (one["metrics"]["ndcg@10"], f"{low:.4f} to {high:.4f}")
        assert row[-2:] == (one["fit_seconds"], "4 of 4")
    slices = {row[0]: row for row in block_of(page, Table, "slices").rows}
    assert slices["new users"][1:] == pytest.approx((120, 0.2, 0.16))


def test_the_command_prints_a_table_and_writes_a_page(tmp_path, monkeypatch):
    made = document(peer=HOSTILE, error=HOSTILE)
    page = backtest_page(made)
    made["words"] = state_results(page)
    write_page(page, tmp_path / "backtest.html")
    found = command.Backtest(tmp_path, made, tmp_path / "backtest.html")
    monkeypatch.setattr(command, "backtest", lambda *_, **__: found)
    done = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, ["backtest", "--preset", "movielens_100k", "--workspace", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert "0.1600" in done.output
    assert made["words"][0] in done.output
    assert HOSTILE in json.dumps(blocks_in(tmp_path / "backtest.html")).replace('\\"', '"')
