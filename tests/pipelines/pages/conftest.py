from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.pages.report_data import Provenance, ReportData, read_report_data
from pipelines.pages.semantic_ids.data import Catalogue, ReportedIds
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.kmeans import Centres
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


@dataclass(frozen=True, kw_only=True)
class PlantedIds:
    """Eight items whose codes, categories and popularity are known; see ``planted``.

    Items 1 to 8 have codes 0-0 0-0 0-1 0-1 1-0 1-0 1-1 1-1 as encoded: each shares them with one
    other item, and the third code numbers the two. Categories follow the first code, but for item
    4, which has none, and item 8, which has the other one.
    """

    titles: tuple[str, ...] = tuple("ABCDEFGH")
    has_popularity: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)


def planted(made: PlantedIds) -> ReportedIds:
    quantizer = ResidualKMeans(
        [
            Centres(torch.tensor([[10.0, 0.0], [0.0, 10.0]]), torch.zeros(2)),
            Centres(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.zeros(2)),
        ]
    )
    pairs = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat_interleave(2, 0)
    nudge = torch.tensor([[0.1, 0.0], [0.0, 0.1]]).repeat(4, 1)
    vectors = torch.cat([torch.zeros(1, 2), quantizer.decode(pairs) + nudge])
    # A third code numbers the two items of each pair.
    codes = torch.cat([pairs, torch.tensor([[0], [1]]).repeat(4, 1)], dim=1)
    ids = SemanticIds.of_items(codes, level_sizes=(2, 2, 2), quantizer_digest=quantizer.digest)
    popularity = [0, 90, 80, 70, 60, 5, 4, 3, 2] if made.has_popularity else [0] * 9
    values: dict[str, Any] = {
        "ids": ids,
        "quantizer": quantizer,
        "id_rows": np.arange(9),
        "vectors": vectors,
        "catalogue": Catalogue(
            titles=["", *made.titles, *"ABCDEFGH"[len(made.titles) :]],
            categories=[[], ["x"], ["x"], ["x"], [], ["y"], ["y"], ["y"], ["x"]],
            popularity=np.array(popularity),
        ),
        "title": "planted",
        "how": "trained",
        "origin": {
            "encoder": "by hand",
            "settings": {"method": "rq_kmeans", "num_levels": 2},
        },
    }
    return ReportedIds(**(values | dict(made.changes)))


@pytest.fixture
def planted_ids() -> Callable[..., ReportedIds]:
    """Make a version of semantic IDs whose report is known: planted_ids(how="kept")."""

    def made(**options: Any) -> ReportedIds:
        size = {name: options.pop(name) for name in ("titles", "has_popularity") if name in options}
        return planted(PlantedIds(**size, changes=options))

    return made
