"""Keys of an earlier version, keys that all trainings share, and durations."""

from dataclasses import replace

import pytest

from pipelines.config.operation import AutoConfig, budget_seconds
from pipelines.config.removed import REMOVED_KEYS, RENAMED_KEYS
from pipelines.config.run import TRAININGS
from pipelines.config.toml import merge, nested, set_value, to_toml
from pipelines.engine.artifacts import plain
from pipelines.engine.runner import run_stages
from pipelines.presets import PRESETS
from pipelines.presets.resolve import PLAN, resolve


def test_a_workspace_of_an_earlier_version_is_read_under_the_new_names(tmp_path):
    base = replace(resolve(preset="movielens_100k"), device="cpu")
    values = plain(base)
    old: dict[str, object] = {"preset": "movielens_100k", "generative": {"memory_orders": [1, 2]}}
    for name, new in RENAMED_KEYS.items():
        if not isinstance(value := set_value(values, new), dict):
            old = merge(old, nested(name, value))
    old = merge(old, {"training": {**values["two_tower_training"], "max_epochs": 17.0}})
    (tmp_path / "config.toml").write_text(to_toml(old))
    training = replace(base.two_tower_training, max_epochs=17.0)
    assert resolve(tmp_path / "config.toml") == replace(base, two_tower_training=training)
    (tmp_path / "shop.toml").write_text(f'workspace = "{tmp_path}"\n')
    (tmp_path / PLAN).write_text('{"choices": {"training": {"max_epochs": 4.0}}}')
    assert resolve(tmp_path / "shop.toml").two_tower_training.max_epochs == 4.0


def test_an_old_key_is_refused_with_what_to_do():
    for key in (*RENAMED_KEYS, *list(REMOVED_KEYS)[-3:]):
        with pytest.raises(ValueError, match=rf"'{key.split('.')[0]}.*was (renamed|removed)"):
            resolve(preset="shop", assignments=[f"{key}=1"])


def test_a_resolved_file_of_a_workspace_can_be_run_again(tmp_path):
    config = resolve(preset="shop", workspace=tmp_path)
    run_stages([], config)
    copy = tmp_path / "copy.toml"
    copy.write_bytes((tmp_path / "config.toml").read_bytes())
    assert resolve(copy) == config


def test_what_all_trainings_share_is_below_their_own_sections(tmp_path):
    (tmp_path / "shop.toml").write_text(
        'preset = "movielens_100k"\n[shared_training]\nmax_epochs = 7.0\n'
        "[sequence_training]\nmax_epochs = 2.0\n"
    )
    config = resolve(tmp_path / "shop.toml")
    assert [getattr(config, name).max_epochs for name in TRAININGS] == [7.0, 2.0, 7.0, 7.0, 7.0]
    # What is not set stays the model's own.
    preset = PRESETS["movielens_100k"]()
    assert config.ranker_training.batch_size == preset.ranker_training.batch_size
    later = resolve(tmp_path / "shop.toml", assignments=["shared_training.max_epochs=1.0"])
    assert {getattr(later, name).max_epochs for name in TRAININGS} == {1.0}
    for assignment, key in (("max_epoch=1.0", "max_epochs"), ('patience="x"', "patience")):
        with pytest.raises(ValueError, match=rf"shared_training\.{key}") as error:
            resolve(preset="shop", assignments=[f"shared_training.{assignment}"])
        assert len(str(error.value).splitlines()) == 1


def test_durations_are_read_and_others_are_refused_with_examples():
    known = {"10m": 600.0, "90s": 90.0, "1h30m": 5400.0, "600": 600.0, "1.5H": 5400.0}
    assert {text: budget_seconds(text) for text in known} == known
    for text in ("", "ten minutes", "m10", "-5m", "10 m", "5d"):
        with pytest.raises(ValueError, match="write it like 10m, 90s"):
            budget_seconds(text)
    assert budget_seconds("5s") == 5.0
    with pytest.raises(ValueError, match="no unit and is read as 5 seconds; write 5m"):
        budget_seconds("5")
    with pytest.raises(ValueError, match="must be > 0, got '0'"):
        AutoConfig(budget="0")
