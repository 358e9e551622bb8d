"""A tiny real workspace with two releases; `synthetic_runs` writes run folders by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.stores import Places, Stores
from tests.conftest import TINY_SHOP, BuiltOnce
from tests.recsys.testing.synthetic import World, markov_world, write_csv

SETTINGS = """
[two_tower_training.schedule]
learning_rate = 0.01
[sequence]
embedding_dim = 16
hidden_dim = 32
max_length = 10
backend = "torch"
[sequence_training]
enabled = true
batch_size = 16
max_epochs = 3.0
[generative]
embedding_dim = 16
hidden_dim = 32
max_length = 10
backend = "torch"
[generative_training]
enabled = true
batch_size = 16
max_epochs = 1.0
[ranker]
embedding_dim = 8
num_experts = 2
hidden_dim = 8
head_dim = 8
tile_rows = 32
backend = "torch"
[ranker_training]
enabled = true
min_found = 10
num_candidates = 15
num_hard = 5
num_random = 5
batch_size = 64
max_epochs = 2
[semantic_ids]
num_levels = 2
codes_per_level = 8
[evaluation]
ks = [5, 10]
"""


HOSTILE_TITLES = (
    "<script>document.title = 'x'</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202eabc",
    "\U0001f3ac <b>&amp;",
)


def noisy_world() -> World:
    """Make a shop in which half of all events are chance, with titles that are no plain words."""
    world = markov_world(num_users=240, num_items=60, events_per_user=12)
    rng = np.random.default_rng(5)
    by_chance = rng.choice(world.catalogue.item_ids, size=len(world.item_ids))
    item_ids = np.where(rng.random(len(by_chance)) < 0.5, by_chance, world.item_ids)
    titles = [*HOSTILE_TITLES, *world.catalogue.titles[len(HOSTILE_TITLES) :]]
    return replace(world, item_ids=item_ids, catalogue=replace(world.catalogue, titles=titles))


def run(config: Path, workspace: Path, *settings: str) -> None:
    """Run all stages by the command line, in this process."""
    from pipelines.cli.main import app

    changes = [part for setting in settings for part in ("--set", setting)]
    words = ["run", str(config), "--set", f"workspace={workspace}", "--quiet", *changes]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def workspace(built_once: BuiltOnce, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which two runs were made, the second with a wider tower."""

    def build(folder: Path) -> None:
        write_csv(noisy_world(), folder)
        config = folder / "shop.toml"
        config.write_text(TINY_SHOP + SETTINGS, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("RECSYS_DATA_CACHE", str(tmp_path_factory.mktemp("cache")))
            run(config, folder / "run")
            run(config, folder / "run", "two_tower.embedding_dim=24")

    return built_once("dashboard", build) / "run"


@pytest.fixture(scope="session")
def context(workspace: Path) -> Context:
    """A dashboard of that workspace alone."""
    return Context(stores=Stores(Places(roots=[workspace])))
