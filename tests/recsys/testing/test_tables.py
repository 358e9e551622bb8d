from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from features.build import FeaturesConfig, FilterConfig, SourceConfig, build_features
from tests.recsys.testing.tables import write_tables
from tests.recsys.testing.world_defects import DEFECT_NAMES
from tests.recsys.testing.worlds import ALL_DEFECTS, frozen_world

NOW = datetime(2024, 6, 1, tzinfo=UTC)
USER_CAP = 400


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_tables("synthetic-defects", tmp_path)
    return tmp_path


def test_quarantine_finds_every_planted_defect_and_no_other_row(
    written: Path, tmp_path: Path
) -> None:
    sources = {
        name: SourceConfig(paths=(written / f"{name}.parquet",))
        for name in ("events", "items", "users")
    }
    config = FeaturesConfig(**sources, filters=FilterConfig(max_user_events=USER_CAP), now=NOW)
    report = build_features(config, tmp_path / "out")
    assert report.quarantined == {
        "event_time is in the future": ALL_DEFECTS.future_times,
        "event_time is too early": ALL_DEFECTS.early_times,
        "value is not finite": ALL_DEFECTS.nan_values,
        "user_id holds a NUL character": ALL_DEFECTS.nul_ids,
        "item_id is missing": ALL_DEFECTS.missing_ids,
    }
    assert report.duplicates == ALL_DEFECTS.duplicates
    assert report.over_user_cap == ALL_DEFECTS.crawler_events - USER_CAP
    assert report.items_without_catalogue == ALL_DEFECTS.unknown_items
    world = frozen_world("synthetic-defects")
    planted = sum(report.quarantined.values()) + report.duplicates + report.over_user_cap
    assert (report.rows_in, report.events) == (len(world.events), len(world.events) - planted)
    found = pl.read_parquet(tmp_path / "out/quarantine/*.parquet")["row"].to_list()
    names = ("future_times", "early_times", "nan_values", "nul_ids", "missing_ids")
    planted_as = [DEFECT_NAMES.index(name) for name in names]
    rows = np.flatnonzero(np.isin(world.events.defects, planted_as)).tolist()
    assert sorted(found) == sorted(rows)
