"""The pages compare and summary say what is known of planted runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.dashboard.compare.compare import ENTRY
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Side
from pipelines.dashboard.data.sides import side_name
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.pages.document import Page
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from tests.pipelines.dashboard.documents import charts, dashboard, table, words
from tests.pipelines.dashboard.planted import (
    Model,
    log_ranks,
    world,
    write_features,
    write_workspace,
)

KNOWN = world(21, num_users=1500)
FIRST_USERS = replace(
    KNOWN,
    seed=22,
    lengths=KNOWN.lengths[:150],
    item_rows=KNOWN.item_rows[: KNOWN.lengths[:150].sum()],
    times=KNOWN.times[: KNOWN.lengths[:150].sum()],
)
BETTER = Model(seed=2, shift=lambda known: np.full(len(known.lengths), -0.3))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    root = tmp_path_factory.mktemp("planted")
    features = tmp_path_factory.mktemp("features") / "features"
    write_features(KNOWN, features)
    plain = {"blend": Model(seed=1), "ease": Model(seed=4)}
    write_workspace(root / "plain", KNOWN, plain, features=features)
    write_workspace(root / "plain-2", KNOWN, {"blend": Model(seed=5)}, features=features)
    write_workspace(root / "better", KNOWN, {"blend": BETTER}, features=features)
    write_workspace(root / "stranger", FIRST_USERS, {"blend": Model(seed=3)})
    return dashboard(root)


def key(context: Context, name: str) -> str:
    return next(run.key for run in context.stores.runs() if run.name == name)


def compare(context: Context, *names: str, **others: str) -> Page:
    keys = tuple(key(context, name) for name in names)
    return ENTRY.build(context, Query.of(runs=keys, **others))


def ndcg(model: Model, k: int) -> float:
    exact = np.ceil(np.exp(log_ranks(KNOWN, model))).clip(1, 299).astype(np.int64)
    ranks = Jagged.one_each(torch.from_numpy(exact))
    return float(per_user_metric(ranks, f"ndcg@{k}").mean())


def test_compare_has_means_of_both_and_says_which_is_better(context):
    page = compare(context, "plain", "better")
    row = next(row for row in table(page, "metrics").rows if row[0] == "NDCG@10")
    assert row[3] == pytest.approx(ndcg(Model(seed=1), 10))
    assert row[4] == pytest.approx(ndcg(BETTER, 10))
    assert row[8] == "better"
    assert "1,500 queries of 1,500 users" in page.lead


def test_slices_of_the_chosen_kind_are_shown(context):
    for group in ("category", "item_popularity", "category x user_activity"):
        page = compare(context, "plain", "better", group=group)
        assert sum(row[2] for row in table(page, "slice-table").rows) == 1500
        assert "slices" in charts(page)


def test_parameters_that_cannot_be_are_said(context):
    for name, value, message in (
        ("k", "0", "1 to 100 are allowed"),
        ("metric", "auc", "metric is 'auc'"),
        ("group", "moon", "group is 'moon'"),
    ):
        with pytest.raises(QueryError, match=message):
            compare(context, "plain", "better", **{name: value})


def summary(context: Context, *names: str) -> Page:
    return PAGES[0].build(context, Query.of(runs=tuple(key(context, name) for name in names)))


def test_summary_chooses_runs_on_the_same_data_and_a_runs_counterpart(context):
    queries = {"plain": Query(), "better": Query.of(run=key(context, "better"))}
    for name, query in queries.items():
        page = PAGES[0].build(context, query)
        assert f"is workspace {name}," in words(page)
        assert "B is workspace plain-2," in words(page)
    alone = PAGES[0].build(context, Query.of(run=key(context, "stranger")))
    assert alone.title == "stranger"


def test_the_losses_that_the_runs_release_tolerates_decide(tmp_path):
    """New users lose and all others gain; the second workspace tolerates that."""
    known = world(31, num_users=1500)
    write_workspace(tmp_path / "plain", known, {"blend": Model(seed=1)})
    mixed = Model(seed=2, shift=lambda known: np.where(known.new_users, 1.0, -0.6))
    for name, settings in (("strict", ""), ("tolerant", "[release]\nmax_slice_loss = 0.95\n")):
        write_workspace(tmp_path / name, known, {"blend": mixed})
        (tmp_path / name / "config.toml").write_text(settings)
    own = dashboard(tmp_path)
    assert summary(own, "plain", "strict").lead.startswith("Keep A (plain): B loses in")
    page = summary(own, "plain", "tolerant")
    assert page.lead.startswith("Release B (tolerant)")
    assert "more than 95%" in charts(page)["slices"].note


def test_a_run_alone_is_compared_by_the_models_that_are_chosen(context):
    page = ENTRY.build(context, Query.of(runs=(key(context, "plain"),), second="ease"))
    assert page.title == "Compare blend and EASE"
    with pytest.raises(QueryError, match="choose another model"):
        ENTRY.build(context, Query.of(run=key(context, "plain"), first="ease", second="ease"))
    with pytest.raises(NotFoundError, match="one model alone"):
        ENTRY.build(context, Query.of(run=key(context, "better")))


def test_slices_whose_files_are_broken_are_left_out_and_said(tmp_path):
    known = world(6, num_users=400)
    for name, seed in (("one", 1), ("two", 2)):
        write_workspace(tmp_path / name, known, {"blend": Model(seed=seed)})
        (tmp_path / name / "build_features" / "item_categories" / "values.npy").write_bytes(b"no")
    broken = dashboard(tmp_path)
    page = PAGES[0].build(broken, Query())
    assert any("Slices by category are left out" in notice for notice in page.notices)
    assert "user activity" in words(page) or charts(page)["slices"].rows


def test_runs_of_one_name_are_told_apart(context):
    run = context.stores.run(key(context, "plain"))
    other = replace(run, key="abcd12345678")
    sides = [Side(run=run, model="blend"), Side(run=other, model="blend")]
    sides.append(Side(run=other, model="ease"))
    names = [side_name(one, sides) for one in sides]
    assert len(set(names)) == 3
    assert names[1] == "plain (abcd), blend"
    assert side_name(sides[0], sides[:1]) == "plain"
