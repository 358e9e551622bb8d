import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.config.run import RunConfig, TrainingConfig
from pipelines.config.toml import to_toml, validate
from pipelines.datasets.registry import DATASETS
from pipelines.engine.artifacts import plain
from pipelines.presets import PRESETS
from pipelines.presets.resolve import resolve, with_dataset


@pytest.mark.parametrize("name", PRESETS)
def test_preset_reads_back_equal_from_its_resolved_toml(name):
    preset = PRESETS[name]()
    assert resolve(preset=name) == preset
    assert validate(RunConfig, tomllib.loads(to_toml(plain(preset))), "resolved") == preset
    # The settings for a shop of one's own name no data set.
    assert preset.data.dataset in (None, *(one.name for one in DATASETS.values()))


def test_later_sources_win(tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(
        'preset = "amazon_toys"\nseed = 1\n[two_tower]\nembedding_dim = 32\nmax_history = 9\n'
    )
    config = resolve(
        path, assignments=["two_tower.embedding_dim=16"], workspace=tmp_path / "elsewhere"
    )
    assert config.data.dataset == "amazon-toys"
    assert config.seed == 1
    assert (config.two_tower.embedding_dim, config.two_tower.max_history) == (16, 9)
    assert config.workspace == tmp_path / "elsewhere"


def test_file_paths_are_relative_to_the_toml(tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text('[data]\nevents = ["a.csv", "b.csv"]\nitems = "/elsewhere/items.csv"\n')
    config = resolve(path)
    assert config.data.event_paths() == (tmp_path / "a.csv", tmp_path / "b.csv")
    assert config.data.items == Path("/elsewhere/items.csv")
    both = replace(config, data=replace(config.data, dataset="movielens-100k"))
    with pytest.raises(ValueError, match=r"both data\.dataset .* keep one"):
        with_dataset(both)


def test_passes_become_steps():
    config = TrainingConfig(batch_size=100, max_epochs=3.0, warmup_share=0.1)
    train = config.for_examples(1_050)
    assert (train.num_steps, train.eval_every) == (30, 10)
    assert (train.schedule.warmup_steps, train.schedule.decay_steps) == (3, 30)
    tiny = config.for_examples(5)
    assert (tiny.num_steps, tiny.eval_every) == (3, 1)
    capped = TrainingConfig(batch_size=100, max_epochs=3.0, max_steps=7).for_examples(1_050)
    assert capped.num_steps == 7
