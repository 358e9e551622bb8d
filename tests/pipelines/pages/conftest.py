from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.pages.report_data import Provenance, ReportData, read_report_data
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
