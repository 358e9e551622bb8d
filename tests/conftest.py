from pathlib import Path

import pytest

from recsys.testing.synthetic import markov_world, write_csv

TINY_SHOP = """
preset = "shop"
[data]
events = "events.csv"
items = "items.csv"
[features]
context_features = []
[content]
encoder = "hash"
[two_tower]
embedding_dim = 16
hidden_dim = 32
max_history = 10
num_uniform_negatives = 1000
backend = "torch"
[training]
batch_size = 64
max_epochs = 3.0
device = "cpu"
[release]
min_gain_over_popularity = -1
"""


@pytest.fixture
def tiny_shop(tmp_path: Path) -> Path:
    """Write a small world and the settings of a run over it that takes seconds; name the TOML."""
    write_csv(markov_world(), tmp_path)
    path = tmp_path / "shop.toml"
    path.write_text(TINY_SHOP)
    return path
