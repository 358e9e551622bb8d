from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.pages.report_data import Provenance, ReportData, read_report_data
from pipelines.semantic_ids.items import Items
from pipelines.semantic_ids.measure import IdsMeasurement, measure, measure_drift
from pipelines.semantic_ids.table import IdTable
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.quality import quality_report
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from tests.pipelines.pages.synthetic_evaluation import (
    SyntheticEvaluation,
    write_synthetic_evaluation,
)

Reported = Callable[..., ReportData]


def provenance(**changes: Any) -> Provenance:
    values: dict[str, Any] = {
        "data_digest": "d" * 64,
        "evaluation_digest": "e" * 64,
        "raw_files": {"items": "f" * 64},
        "versions": {"torch": "2.13.0"},
        "settings": 'seed = 0\n\n[data]\nseparator = "<"\n',
        "dataset": None,
        "num_test_looks": 1,
    }
    return Provenance(**(values | changes))


def read(folder: Path, made: SyntheticEvaluation, **changes: Any) -> ReportData:
    places = write_synthetic_evaluation(folder, made)
    return read_report_data(
        places,
        title=changes.pop("title", "shop"),
        split_kind=changes.pop("split_kind", "leave_one_out"),
        excludes_history=changes.pop("excludes_history", True),
        provenance=provenance(**changes),
    )


@pytest.fixture
def reported(tmp_path: Path) -> Reported:
    """Write a made-up evaluation and read its report's data: reported(num_users=9, title="a")."""
    fields = set(SyntheticEvaluation.__dataclass_fields__)

    def made(**options: Any) -> ReportData:
        size = {name: value for name, value in options.items() if name in fields}
        others = {name: value for name, value in options.items() if name not in fields}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return read(folder, SyntheticEvaluation(**size), **others)

    return made


@pytest.fixture(scope="session")
def plain_report(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return read(tmp_path_factory.mktemp("evaluation"), SyntheticEvaluation())


def planted_items(titles: Sequence[str], popularity: Sequence[int], names: Sequence[str]) -> Items:
    """Make items by item row; ``names`` has the category of each, "" for none."""
    known = sorted(set(filter(None, names)))
    return Items(
        item_ids=pl.Series(["", *(f"i{row}" for row in range(1, len(titles) + 1))]),
        titles=pl.Series(["", *titles]),
        categories=np.array([-1, *(known.index(one) if one else -1 for one in names)]),
        names=known,
        popularity=np.array([0, *popularity], np.float64),
    )


def planted(**changes: Any) -> dict[str, Any]:
    """Make eight items whose codes, categories and popularity are known.

    Items 1 to 8 have codes 0-0 0-0 0-1 0-1 1-0 1-0 1-1 1-1 as encoded: each shares them with one
    other item, and the third code numbers the two. Categories follow the first code, but for item
    4, which has none, and item 8, which has the other one.
    """
    quantizer = ResidualKMeans(
        [
            Centres(torch.tensor([[10.0, 0.0], [0.0, 10.0]]), torch.zeros(2)),
            Centres(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.zeros(2)),
        ]
    )
    pairs = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat_interleave(2, 0)
    nudge = torch.tensor([[0.1, 0.0], [0.0, 0.1]]).repeat(4, 1)
    vectors = torch.cat([torch.zeros(1, 2), quantizer.decode(pairs) + nudge])
    titles = [*changes.pop("titles", ()), *"ABCDEFGH"[len(changes.get("titles", ())) :]][:8]
    popularity = changes.pop("popularity", [90, 80, 70, 60, 5, 4, 3, 2])
    origin = {"encoder": "by hand", "settings": {"method": "rq_kmeans", "num_levels": 2}}
    return {
        "ids": SemanticIds.of_items(
            torch.cat([pairs, torch.arange(8)[:, None] % 2], dim=1),
            level_sizes=(2, 2, 2),
            quantizer_digest=quantizer.digest,
            item_rows=torch.arange(1, 9),
            num_item_rows=9,
        ),
        "quantizer": quantizer,
        "id_rows": np.arange(9),
        "vectors": vectors,
        "items": planted_items(titles, popularity, ["x", "x", "x", "", "y", "y", "y", "x"]),
        "made": {"method": "rq_kmeans", "how": "trained", "origin": origin}
        | {"num_without_content": 0},
        "title": "planted",
        "before": None,
        **changes,
    }


@pytest.fixture
def planted_ids() -> Callable[..., IdsMeasurement]:
    """Measure a version of semantic IDs whose report is known: planted_ids(titles="abc")."""

    def made(**changes: Any) -> IdsMeasurement:
        parts = planted(**changes)
        ids, items, rows = parts["ids"], parts["items"], parts["id_rows"]
        table, by_id_row = (
            IdTable.of(ids, rows),
            torch.zeros(ids.num_item_rows, parts["vectors"].shape[1]),
        )
        places = torch.from_numpy(rows)
        named = ids.by_item_row(places).codes[:, 0] >= 0
        by_id_row[places[named]] = parts["vectors"][named]
        quality = quality_report(parts["quantizer"], by_id_row, ids, item_rows=places[named])
        before = parts["before"]
        drift = before and measure_drift(IdTable.of(before, rows), table)
        report = measure(table, items, parts["made"], title=parts["title"], content=quality)
        return IdsMeasurement(report=report, drift=drift, table=table, items=items)

    return made
