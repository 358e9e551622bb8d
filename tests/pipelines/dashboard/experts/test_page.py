"""The page of experts and adapters as a document."""

from typing import Any

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.experts import build
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from pipelines.pages.document import Chart, Page, Table
from pipelines.pages.encoding import encoded
from tests.pipelines.dashboard.documents import blocks_of, sections


def block(page: Page, key: str) -> Any:
    return next(one for one in blocks_of(page.blocks, object) if getattr(one, "key", "") == key)


def test_a_dead_expert_is_said_first(experts_context: Context) -> None:
    page = build(experts_context, Query.of())
    assert page.lead == (
        "3 of 4 experts are used; the busiest has 50.0% of the visits, 2.00 times the mean."
    )
    assert "1 experts have none" in sections(page)["mixture-sparse"].note


def test_experts_are_named_by_their_groups(experts_context: Context) -> None:
    table: Table = block(build(experts_context, Query.of()), "experts-sparse")
    assert table.rows[0] == ("expert 1", 0.5, "books (1.6 times)")
    assert table.rows[1][2] == "films (1.7 times)"
    assert table.rows[3] == ("expert 4", 0.0, "none")


def test_a_harmful_adapter_is_refused_with_the_slice_it_harms(experts_context: Context) -> None:
    page = build(experts_context, Query.of())
    assert "Refused; the base answers the domain" in str(sections(page)["adapter-books"].blocks[0])
    chart: Chart = block(page, "changes-books")
    assert chart.title == "books: +0.0500 over the base; the gate refuses user activity new"
    assert list(chart.rows) == [
        ("domain books", 200, 0.05, 0.01, 0.09, "allowed"),
        ("user activity new", 40, -0.08, -0.12, -0.04, "refused"),
    ]
    verdicts: Table = block(page, "verdicts-books")
    assert [row[3] for row in verdicts.rows] == ["yes", "no", "yes"]


@pytest.mark.slow
def test_a_real_run_and_its_bundle_show_the_same_experts(context: Context) -> None:
    assert any(page.name == "experts" for page in PAGES)
    runs = {run.kind: run for run in reversed(context.stores.runs())}
    loads = []
    for kind in ("workspace", "bundle"):
        page = build(context, Query.of(run=runs[kind].key))
        loads.append([row[:2] for row in block(page, "experts-sparse").rows])
        assert len(encoded(page)) < 250_000
    assert len(loads[0]) == 2
