"""The page of a run: every number, nothing that was not measured, and the same bytes again."""

import json

import pytest

from pipelines.pages.document import Chart, Section, Table
from pipelines.pages.figures import counted
from pipelines.pages.file import page_html
from pipelines.pages.report import report_page
from pipelines.pages.report_data import read_curve
from pipelines.pages.wording import by_fame, in_order, model_label
from tests.pipelines.dashboard.documents import block_of, blocks_of

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "{{ 7 * 7 }} {% raw %}",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 family \U0001f600",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed",
    "W" * 300,
    'it\'s "quoted" & more',
)


@pytest.fixture(scope="module")
def page(plain_report):
    return report_page(plain_report)


def sections(page):
    return {one.key for one in page.blocks if isinstance(one, Section)}


def test_every_number_of_the_report_is_on_the_page(page, plain_report):
    for split in ("validation", "test"):
        rows = {row[0]: row for row in block_of(page, Table, f"intervals-{split}").rows}
        for model in plain_report.models:
            mean, low, high, _ = plain_report.interval(model, split)
            assert rows[model_label(model)][1:3] == [mean, f"{low:.4f} to {high:.4f}"]
    tests = [
        one
        for one in plain_report.measured("test").comparisons
        if one.metric == plain_report.primary
    ]
    shown = block_of(page, Table, "tests").rows
    assert sorted(abs(row[4]) for row in shown) == sorted(abs(one.difference) for one in tests)
    values = plain_report.metrics["given"]["test"]
    every = block_of(page, Table, "every-metric")
    order = by_fame(values[plain_report.models[0]], plain_report.primary)
    assert [list(row[1:]) for row in every.rows] == [
        [values[model][name] for model in plain_report.models] for name in order
    ]
    charts = {one.key: one for one in blocks_of(page.blocks, Chart)}
    assert set(charts) == {"curve-validation", "slices"}
    parts = {row[:3]: row[3:] for row in charts["slices"].rows}
    for model in plain_report.models:
        for part in plain_report.measured("test").models[model].slices:
            if part.name == "head":
                own = parts[f"head ({part.num_users:,})", "item popularity", model_label(model)]
                assert own == part.metrics[plain_report.primary][:3]
    drawn = {mark["series"] for mark in charts["slices"].spec["data"]["values"]}
    assert drawn == {"popularity", "blend"}


def test_the_first_screen_says_what_is_served_and_whom_it_fails(reported):
    data = reported(models=("popularity", "blend", "blend_fast", "ranked"))
    page = report_page(data)
    assert page.lead.startswith("Served is the ranked blend. It ranks a held-out item among")
    tiles = {tile.label: tile for tile in page.blocks[0].tiles}
    assert tiles["NDCG@10 on test"].value == f"{data.interval('ranked', 'test').mean:.4f}"
    parts = [
        part.metrics[data.primary].mean
        for part in data.measured("test").models["ranked"].slices
        if part.num_users >= 30
    ]
    assert f"NDCG@10 {min(parts):.4f}" in tiles["Served worst"].note


def test_titles_are_only_text(reported):
    page = report_page(
        reported(
            categories=HOSTILE, title=HOSTILE[1], warnings=HOSTILE, quarantined={HOSTILE[0]: 3}
        )
    )
    text = page_html(page, "report")
    data = text.split('type="application/json">')[1].split("</script>")[0]
    assert "<" not in data
    assert text.lower().count("<script") == text.lower().count("</script>") == 4
    assert set(HOSTILE) <= set(page.notices)


def test_the_ranker_and_its_routing_are_shown(page):
    assert "The ranker's order is served" in str(page)
    # A task of one class has no AUC.
    assert {row[1] for row in block_of(page, Table, "calibration").rows} == {0.88, None}
    assert block_of(page, Table, "experts-sparse").rows


def test_models_have_one_order_so_one_colour_on_every_page(plain_report):
    assert plain_report.models == in_order(sorted(plain_report.models))
    assert plain_report.models != tuple(sorted(plain_report.models))


def test_ids_of_users_stay_out(plain_report):
    written = json.dumps(plain_report.as_json())
    assert "user_id" not in written
    assert "user_row" not in written


def test_labels_of_slices_are_short_and_never_equal():
    names = ["W" * 30, "W" * 40, "Drama", "\u05e9\u05dc\u05d5\u05dd"]
    labels = counted(names, [1, 1, 2_000, 3])
    assert labels[0] == "W" * 15 + "... (1)"
    assert labels[2] == "Drama (2,000)"
    assert labels[3] == "\u2068\u05e9\u05dc\u05d5\u05dd\u2069 (3)"
    assert len(set(labels)) == 4


def write(folder, lines, **ending):
    folder.mkdir(parents=True)
    (folder / "curve.jsonl").write_text("\n".join(lines) + "\n")
    training = {"num_steps": 20, "best_step": 10, "stopped_early": True} | ending
    (folder / "training.json").write_text(json.dumps(training))


def test_validation_is_read_by_step(tmp_path):
    lines = [
        '{"step": 5, "loss": 2.0}',
        '{"step": 10, "ndcg@10": 0.2, "recall@10": 0.3}',
        '{"step": 10, "loss": NaN}',
        '{"step": 20, "loss": 1.0}',
    ]
    write(tmp_path / "given", lines)
    curve = read_curve(tmp_path / "given", "two_tower", "ndcg@10")
    assert curve.validation == [(10, 0.2)]
    assert (curve.best_step, curve.stopped_early) == (10, True)


def test_another_metric_stands_in_and_none_is_no_error(tmp_path):
    write(tmp_path / "given", ['{"step": 10, "recall@10": 0.3}'])
    write(tmp_path / "without", ['{"step": 10, "loss": 0.3}'], best_step=None)
    given, without, none = (
        read_curve(tmp_path / order, "two_tower", "ndcg@10") for order in ("given", "without", "x")
    )
    assert (given.metric, given.validation) == ("recall@10", [(10, 0.3)])
    assert (without.validation, without.best_step) == ([], None)
    assert none is None
