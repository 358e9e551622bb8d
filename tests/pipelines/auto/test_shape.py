from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.auto.shape import judged_by, repeat_share
from pipelines.config.operation import AutoConfig
from pipelines.presets import PRESETS
from pipelines.stages.build_features import features_config
from recsys.data.dataset import Sequences


def sequences(*users: list[int]) -> Sequences:
    """Lay users' items out, the last event of each held out for test, the one before it too."""
    ends = np.cumsum([0, 0, *map(len, users)])
    return Sequences(
        item_rows=np.array([item for user in users for item in user]),
        offsets=ends,
        train_end=np.maximum(ends[:-1], ends[1:] - 2),
        validation_end=np.maximum(ends[:-1], ends[1:] - 1),
    )


def test_an_item_repeats_within_a_user_only() -> None:
    assert repeat_share(sequences([1, 2, 1, 1], [1, 2, 3])) == 0.5
    assert repeat_share(sequences([1, 2, 3, 4], [1, 2, 3])) == 0.0


def test_the_share_of_repeats_is_of_held_out_events() -> None:
    assert repeat_share(sequences([1, 2, 1, 2], [3, 3, 4, 5])) == 0.5
    assert repeat_share(sequences()) == 0.0


def test_only_an_automatic_run_lets_the_log_decide() -> None:
    config = PRESETS["auto"]()
    config = replace(config, data=replace(config.data, events=Path("events.csv")))
    features = features_config(config)
    assert (features.splits.kind, features.catalogue_only_items) == ("auto", "auto")
    fixed = features_config(replace(config, auto=AutoConfig(enabled=False)))
    assert (fixed.splits.kind, fixed.catalogue_only_items) == ("leave_one_out", False)


def test_what_models_are_judged_by_is_said_with_its_moment_or_its_reason() -> None:
    report = {
        "split_kind": "global_time",
        "split_reason": "",
        "validation_from": "2024-05-01T00:00:00Z",
        "test_from": "2024-05-20T00:00:00Z",
    }
    assert "2024-05-01" in judged_by(report)
    assert "2024-05-20" in judged_by(report)
    last = {"split_kind": "leave_one_out", "split_reason": "events have no times"}
    assert "events have no times" in judged_by(last)
