"""The page of semantic IDs: collisions and drift of a report whose numbers are known."""

import json
from pathlib import Path

import pytest

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.semantic_ids import build
from tests.pipelines.dashboard.documents import dashboard, table, words
from tests.pipelines.dashboard.synthetic_runs import write_json, write_run

REPORT = "build_semantic_ids/semantic_ids_report.json"


def level(size: int, used: int) -> dict[str, object]:
    near = {"neighbour_agreement": 0.5, "agreement_by_chance": 0.1, "num_prefixes": used}
    counted = {"size": size, "num_used": used, "utilisation": used / size, "perplexity": 3.0}
    return {**near, **counted, "entropy_bits": 1.6, "purity": None, "purity_by_chance": None}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A run of 8 items, 7 with an ID of two codes and one that resolves collisions."""
    workspace = write_run(tmp_path / "run", stages=("build_features", "build_semantic_ids"))
    levels = [level(4, 3), level(4, 4)]
    quality = {
        "version": "abcdef0123",
        "num_items": 7,
        "levels": levels,
        "published": [*levels, level(2, 2)],
        "collisions_before": 2,
        "largest_group": 2,
        "groups_before": [[2, 2]],
        "collisions_after": 1,
        "moved": [0.0, 0.25],
        "reconstruction_error": 0.2,
        "errors_by_level": [0.5, 0.2],
        "published_error": 0.2,
    }
    kept = {"num_items": 6, "full": 0.5, "per_level": [0.75, 0.5, 1.0]}
    report = {"version": "abcdef0123", "parent": "0123456789", "how": "aligned", "num_new": 1}
    counts = {"num_items": 8, "num_with_id": 7, "num_without_content": 1}
    parts = {"quality": quality, "kept": {**kept, "per_prefix": [0.75, 0.5, 0.5]}}
    write_json(workspace / REPORT, {**report, **counts, **parts})
    (workspace / "build_semantic_ids/semantic_ids.json").write_text("{}")
    return workspace


def test_collisions_and_drift_of_each_level_are_those_of_the_report(shop):
    page = build(dashboard(shop.parent), Query())
    assert page.lead == "7 of 8 items have an ID of 3 codes."
    assert [row[0] for row in table(page, "levels").rows] == [
        "level 1",
        "level 2",
        "level 3, resolves collisions",
    ]
    assert table(page, "levels").rows[1][1:] == (4, 4, 1.0, 3.0, 4, 0.5, 0.1, 0.2, 0.25, 0.5, 0.5)
    assert table(page, "levels").rows[2][8:] == (None, None, 1.0, 0.5)
    assert "gave 2 items the codes of another one, at most 2 the same" in words(page)
    assert "It follows version 0123456789; IDs were aligned" in words(page)
    assert "6 items with an ID in both versions 50.0% kept it whole" in words(page)
    assert page.notices[0].startswith("Items without content and therefore without an ID: 1;")


def test_a_report_of_another_version_or_none_is_refused_with_the_remedy(shop):
    report = json.loads((shop / REPORT).read_text())
    del report["quality"]["moved"]
    context = dashboard(shop.parent)
    for text in (json.dumps(report), "{", '{"version": "a"}'):
        (shop / REPORT).write_text(text)
        with pytest.raises(NotFoundError, match="run its stage build_semantic_ids again"):
            build(context, Query())
    (shop / REPORT).write_text('{"method": "none"}')
    with pytest.raises(NotFoundError, match=r"semantic_ids\.method"):
        build(context, Query.of(run=context.stores.runs()[0].key))
