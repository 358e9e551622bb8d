from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli.main import app
from tests.recsys.testing.synthetic import World, markov_world, write_csv

SETTINGS = """
preset = "shop"
auto.enabled = false
device = "cpu"

[data]
events = "events.csv"
items = "items.csv"
users = "users.csv"

[features]
context_features = []
history_event_types = true

[content]
encoder = "hash"

[two_tower]
embedding_dim = 16
hidden_dim = 32
max_history = 10
dropout = 0.1
num_uniform_negatives = 1000
backend = "torch"

[two_tower_training]
batch_size = 64
max_epochs = 8.0

[two_tower_training.schedule]
learning_rate = 0.02

[sequence]
embedding_dim = 16
hidden_dim = 32
max_length = 10
dropout = 0.1
backend = "torch"

[sequence_training]
enabled = true
batch_size = 32
max_epochs = 15.0

[sequence_training.schedule]
learning_rate = 0.02

[generative]
embedding_dim = 16
hidden_dim = 32
max_length = 10
dropout = 0.1
backend = "torch"

[generative_training]
enabled = true
batch_size = 16
max_epochs = 4.0
epochs_per_evaluation = 2.0

[generative_training.schedule]
learning_rate = 0.01

[search]

[evaluation]
ks = [5, 10]

[tracking]
enabled = false
"""


def write_shop(folder: Path, world: World, settings: str = SETTINGS) -> Path:
    """Write a world's CSV files and the TOML beside them; return the TOML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(world, folder)
    path = folder / "shop.toml"
    path.write_text(settings)
    return path


@pytest.fixture(autouse=True, scope="session")
def embedding_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep encoded texts out of the home folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RECSYS_DATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.delenv("RECSYS_DATA_MIRROR", raising=False)
        yield


@pytest.fixture(scope="session")
def recsys() -> Callable[..., Result]:
    """Run the command line in this process: recsys("run", path)."""
    runner = CliRunner()

    def run(*arguments: object) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def write_world() -> Callable[..., Path]:
    """Give `write_shop` to tests that make worlds of their own."""
    return write_shop


@pytest.fixture(scope="session")
def world() -> World:
    return markov_world(num_users=80, num_items=24, events_per_user=10)


@pytest.fixture(scope="session")
def shop(
    built_once: Callable[[str, Callable[[Path], None]], Path],
    world: World,
    recsys: Callable[..., Result],
) -> Path:
    """A workspace in which the whole run on a small world is done."""

    def build(folder: Path) -> None:
        config = write_shop(folder, world)
        result = recsys("run", config, "--set", f"workspace={folder / 'run'}", "--quiet")
        assert result.exit_code == 0, result.output

    workspace = built_once("shop", build) / "run"
    assert (workspace / "bundles/current").readlink().name.startswith("bundle-")
    return workspace
