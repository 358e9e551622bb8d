"""The page of semantic IDs as a document."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.semantic_ids import build, members, suggest_items
from pipelines.pages.document import Page, Table, Tree, Window
from pipelines.pages.encoding import encoded
from tests.pipelines.dashboard.documents import blocks_of, sections
from tests.pipelines.dashboard.semantic_ids.conftest import TITLES


def by_key(page: Page, key: str) -> Any:
    return next(one for one in blocks_of(page.blocks, object) if getattr(one, "key", "") == key)


def test_the_tree_opens_at_the_whole_catalogue(ids_context: Context) -> None:
    page = build(ids_context, Query.of())
    tree: Tree = by_key(page, "tree")
    (root,) = tree.nodes
    assert root.note == "7 items with an ID"
    assert [node.label for node in root.children] == ["0", "1", "3"]
    # A hostile title stays text.
    assert TITLES[0] in root.children[0].note
    assert "no content" in " ".join(page.notices)


def test_a_link_of_the_tree_opens_the_prefix_and_its_items(ids_context: Context) -> None:
    page = build(ids_context, Query.of())
    link = by_key(page, "tree").nodes[0].children[1].link
    query = Query.of(**dict(link.parameters))
    opened = by_key(build(ids_context, query), "tree").nodes[0]
    assert [node.label for node in opened.children] == ["1"]
    assert [node.label for node in opened.children[0].children] == ["1-0", "1-1", "1-2"]
    rows = members(ids_context, query, Window())
    assert (rows.total, [row[1] for row in rows.rows]) == (3, ["three", "four", "five"])
    by_title = members(ids_context, query, Window(order_by=1, descending=True, length=1))
    assert by_title.rows[0][1] == "three"
    found = members(ids_context, query, Window(search="FIVE"))
    assert (found.total, found.found) == (3, 1)


def test_an_item_is_found_by_title_and_opens_its_path(ids_context: Context) -> None:
    (option,) = suggest_items(ids_context, Query.of(), "SIX")
    assert (option.value, option.label) == ("i6", "six (0-3)")
    page = build(ids_context, Query.of(item="i6"))
    assert sections(page)["item"].title == "six"
    node = by_key(page, "tree").nodes[0].children[0]
    assert (node.label, node.children[0].label) == ("0", "0-3")


def test_an_item_without_an_id_says_so(ids_context: Context) -> None:
    page = build(ids_context, Query.of(item="i7"))
    assert "has no semantic ID" in str(sections(page)["item"])


def test_drift_compares_with_the_version_before(ids_context: Context) -> None:
    page = build(ids_context, Query.of())
    assert "1 of 3 first codes share less than" in str(sections(page)["versions"])
    assert "66.7% kept it whole" in str(sections(page)["versions"])


def test_an_earlier_version_is_shown_with_the_same_items(ids_context: Context) -> None:
    earlier = next(one for one in build(ids_context, Query.of()).controls if one.name == "version")
    page = build(ids_context, Query.of(version=earlier.options[1].value))
    assert [node.label for node in by_key(page, "tree").nodes[0].children] == ["0", "1", "2"]


def test_a_file_offers_nothing_to_query(ids_context: Context) -> None:
    page = build(replace(ids_context, exported=True), Query.of(prefix="0"))
    assert not page.controls
    table: Table = by_key(page, "members")
    assert table.source is None
    assert len(table.rows) == 3
    assert by_key(page, "tree").nodes[0].link is None


def test_unknown_names_are_refused_in_words(ids_context: Context) -> None:
    with pytest.raises(NotFoundError, match="version 'zz' is not there"):
        build(ids_context, Query.of(version="zz"))


def test_damaged_codes_are_named(ids_context: Context, ids_workspace: Path) -> None:
    path = ids_workspace / "build_semantic_ids" / "semantic_ids.safetensors"
    path.write_bytes(b"damaged")
    with pytest.raises(NotFoundError, match=r"cannot be read: refused .*semantic_ids.safetensors"):
        build(ids_context, Query.of())


def test_a_real_run_and_its_bundle_show_the_same_ids(context: Context) -> None:
    runs = {run.kind: run for run in reversed(context.stores.runs())}
    pages = [build(context, Query.of(run=runs[kind].key)) for kind in ("workspace", "bundle")]
    own, bundled = (by_key(page, "levels").rows for page in pages)
    assert own == bundled
    for page in pages:
        keys = {getattr(block, "key", "") for block in blocks_of(page.blocks, object)}
        assert {"tree", "levels", "prefixes-kept", "made"} <= keys
        assert len(encoded(page)) < 250_000
