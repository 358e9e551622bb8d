"""The page of semantic IDs as a document."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.semantic_ids import build
from pipelines.pages.document import Page
from pipelines.pages.encoding import encoded
from tests.pipelines.dashboard.documents import blocks_of, sections
from tests.pipelines.dashboard.semantic_ids.conftest import TITLES


def by_key(page: Page, key: str) -> Any:
    return next(one for one in blocks_of(page.blocks, object) if getattr(one, "key", "") == key)


def first_codes(page: Page) -> list[Any]:
    return [row[0] for row in by_key(page, "first-codes").rows]


def test_first_codes_list_their_items_as_text(ids_context: Context) -> None:
    page = build(ids_context, Query.of())
    rows = by_key(page, "first-codes").rows
    assert [row[:2] for row in rows] == [(0, 3), (1, 3), (3, 1)]
    assert TITLES[0] in rows[0][4]
    assert "no content" in " ".join(page.notices)


def test_drift_compares_with_the_version_before(ids_context: Context) -> None:
    page = build(ids_context, Query.of())
    assert "1 of 3 first codes share less than" in str(sections(page)["versions"])
    assert "66.7% kept it whole" in str(sections(page)["versions"])


def test_an_earlier_version_is_shown_with_the_same_items(ids_context: Context) -> None:
    earlier = next(one for one in build(ids_context, Query.of()).controls if one.name == "version")
    page = build(ids_context, Query.of(version=earlier.options[1].value))
    assert sorted(first_codes(page)) == [0, 1, 2]


def test_a_file_offers_nothing_to_query(ids_context: Context) -> None:
    assert not build(replace(ids_context, exported=True), Query.of()).controls


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
        assert {"first-codes", "levels", "prefixes-kept", "made"} <= keys
        assert len(encoded(page)) < 250_000
