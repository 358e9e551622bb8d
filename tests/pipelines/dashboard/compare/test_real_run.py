"""Both pages on a tiny real workspace that released twice."""

import pytest

from pipelines.dashboard.compare.compare import ENTRY
from pipelines.dashboard.context import Context
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from pipelines.evaluation.analysis import Analysis
from pipelines.pages.document import Words
from tests.pipelines.dashboard.documents import charts, table, words

pytestmark = pytest.mark.slow


def test_the_served_bundle_is_held_against_the_one_before_it(context: Context) -> None:
    page = PAGES[0].build(context, Query())
    newest, older = context.stores.bundles()[:2]
    assert newest.tags["served"] == "yes"
    assert f"A is bundle {older.name}" in words(page)
    assert f"B is bundle {newest.name}" in words(page)
    assert page.lead.startswith("The release gate decided on this pair: B was released")
    rows = charts(page)["slices"].rows
    assert sum(str(row[-1]).endswith(("lost", "gained", "not shown")) for row in rows) > 2


def test_bundles_and_their_workspace_have_the_same_numbers(context: Context) -> None:
    run = context.stores.workspaces()[0]
    bundle = next(one for one in context.stores.bundles() if one.made_by == run.key)
    page = ENTRY.build(context, Query.of(runs=(run.key, bundle.key)))
    rows = table(page, "metrics").rows
    assert [row[5] for row in rows] == [0.0] * len(rows)
    assert run.path is not None
    analysed = Analysis.load(run.path / "evaluate").orders["given"]["test"]
    assert run.served is not None
    expected = analysed.models[run.served].intervals["ndcg@10"].mean
    assert rows[0][3] == pytest.approx(expected)


def test_slices_are_those_of_the_report(context: Context) -> None:
    run = context.stores.workspaces()[0]
    assert run.path is not None
    assert run.served is not None
    analysed = Analysis.load(run.path / "evaluate").orders["given"]["test"]
    other = next(name for name in analysed.models if name != run.served)
    for group in ("user_activity", "item_popularity", "category"):
        page = ENTRY.build(
            context, Query.of(run=run.key, first=run.served, second=other, group=group)
        )
        shown = {row[0]: (row[2], row[3]) for row in table(page, "slice-table").rows}
        expected = {
            part.name: (part.num_users, part.metrics["ndcg@10"].mean)
            for part in analysed.models[run.served].slices
            if part.group == group and part.num_users
        }
        assert shown == {name: pytest.approx(value) for name, value in expected.items()}


def test_a_file_holds_the_pair_of_its_run(context: Context) -> None:
    exported = Context(stores=context.stores, exported=True)
    run = Query.of(run=context.stores.workspaces()[0].key)
    assert ENTRY.exports is not None
    queries = ENTRY.exports(exported, run)
    linked = PAGES[0].build(exported, run)
    addresses = [dict(query.values) for query in queries]
    to_compare = [
        Query.of(**link.parameters).values
        for block in linked.blocks
        if isinstance(block, Words)
        for link in block.links
        if link.page == "compare"
    ]
    assert len(to_compare) == 1
    assert dict(to_compare[0]) in addresses
    assert len({ENTRY.build(exported, query).title for query in queries}) == 2
