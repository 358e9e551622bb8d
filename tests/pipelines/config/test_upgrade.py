from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.removed import REMOVED_KEYS, RENAMED_KEYS
from pipelines.config.run import TRAININGS, RunConfig
from pipelines.config.toml import dataclasses_in, merge, nested, to_toml
from pipelines.config.upgrade import upgrade_text
from pipelines.engine.artifacts import plain
from pipelines.engine.runner import run_stages
from pipelines.presets import PRESETS
from pipelines.presets.resolve import PLAN, resolve
from recsys.training.passes import TrainingConfig

OLD = """# A shop.
preset = "movielens_100k"  # small
seed = 3

# The two-tower alone.
[training]
device = "cpu"  # no GPU
max_epochs = 2.0
  batch_size=64

[training.schedule]  # slow
learning_rate = 1e-3

[sequence_training]
device = "cpu"
max_epochs = 5.0

[generative]
memory_orders = [
    1,  # pairs
    2,
]
dropout = 0.3
"""
NEW = """# A shop.
preset = "movielens_100k"  # small
seed = 3
device = "cpu"  # no GPU

# The two-tower alone.
[two_tower_training]
max_epochs = 2.0
  batch_size=64

[two_tower_training.schedule]  # slow
learning_rate = 1e-3

[sequence_training]
max_epochs = 5.0

[generative]
dropout = 0.3
"""


def test_a_file_keeps_its_comments_and_order_and_an_upgraded_one_its_text() -> None:
    text, changes = upgrade_text(OLD, "shop.toml")
    assert text == NEW
    assert len(changes) == 4
    assert upgrade_text(text, "shop.toml") == (NEW, [])


def test_every_old_key_resolves_to_the_value_of_its_new_key(tmp_path: Path) -> None:
    base = resolve(preset="movielens_100k")
    values = plain(replace(base, device="cpu"))
    old: dict[str, object] = {"preset": "movielens_100k"}
    for name, new in RENAMED_KEYS.items():
        value = values
        for part in new.split("."):
            value = value[part]
        if not isinstance(value, dict):
            old = merge(old, nested(name, value))
    old = merge(old, {"training": {**values["two_tower_training"], "max_epochs": 17.0}})
    text, changes = upgrade_text(to_toml(old), "shop.toml")
    assert {one.split(" ")[0] for one in changes} >= set(RENAMED_KEYS)
    (tmp_path / "shop.toml").write_text(text)
    training = replace(base.two_tower_training, max_epochs=17.0)
    expected = replace(base, device="cpu", two_tower_training=training)
    assert resolve(tmp_path / "shop.toml") == expected


@pytest.mark.parametrize("text", ["training = {max_epochs = 2.0, device = 'cpu'}\n", "seed = \n"])
def test_a_file_that_cannot_be_edited_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"shop.toml .*nothing was changed"):
        upgrade_text(text, "shop.toml")


@pytest.mark.parametrize("key", [*RENAMED_KEYS, *list(REMOVED_KEYS)[-3:]])
def test_an_old_key_is_refused_with_what_to_do(key: str) -> None:
    with pytest.raises(ValueError, match=rf"'{key.split('.')[0]}.*was (renamed|removed)"):
        resolve(preset="shop", assignments=[f"{key}=1"])


def test_no_more_than_320_keys_can_be_set() -> None:
    def leaves(kind: type, prefix: str) -> Iterator[str]:
        for name, hint in get_type_hints(kind).items():
            within = list(dataclasses_in(hint))
            if prefix + name not in REMOVED_KEYS:
                yield from [] if within else [prefix + name]
                for inner in within:
                    yield from leaves(inner, f"{prefix}{name}.")

    shared = set(leaves(TrainingConfig, "shared_training."))
    own = {
        key
        for key in leaves(RunConfig, "")
        if key.split(".")[0] not in TRAININGS
        or f"shared_training.{key.partition('.')[2]}" not in shared
    }
    assert len(own - REMOVED_KEYS.keys()) + len(shared - REMOVED_KEYS.keys()) <= 320


def test_a_resolved_file_of_a_workspace_can_be_run_again(tmp_path: Path) -> None:
    config = resolve(preset="shop", workspace=tmp_path)
    run_stages([], config)
    copy = tmp_path / "copy.toml"
    copy.write_bytes((tmp_path / "config.toml").read_bytes())
    assert resolve(copy) == config


def test_the_command_prints_or_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(OLD)
    runner = CliRunner()
    printed = runner.invoke(app, ["config", "upgrade", str(path)])
    assert printed.stdout == NEW
    assert "training renamed: two_tower_training" in printed.stderr
    assert path.read_text() == OLD
    assert runner.invoke(app, ["config", "upgrade", str(path), "--write"]).exit_code == 0
    assert path.read_text() == NEW
    path.write_text("training = {max_epochs = 2.0, device = 'cpu'}\n")
    assert runner.invoke(app, ["config", "upgrade", str(path), "--write"]).exit_code == 2
    assert path.read_text().startswith("training = {")


def test_a_workspace_of_the_version_before_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(OLD)
    config = resolve(tmp_path / "config.toml")
    assert config.two_tower_training.max_epochs == 2.0
    (tmp_path / "shop.toml").write_text(f'workspace = "{tmp_path}"\n')
    (tmp_path / PLAN).write_text('{"choices": {"training": {"max_epochs": 4.0}}}')
    assert resolve(tmp_path / "shop.toml").two_tower_training.max_epochs == 4.0


def test_what_all_trainings_share_is_below_their_own_sections(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("shared_training.max_epoch=1.0", r"did you mean 'shared_training\.max_epochs'"),
        ('shared_training.patience="x"', r"shared_training\.patience = 'x'"),
    ],
)
def test_a_fault_in_what_is_shared_is_named_once(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        resolve(preset="shop", assignments=[assignment])
    assert len(str(error.value).splitlines()) == 1
