"""A world with a known answer: even users take even items, odd users odd ones."""

import pytest

from recsys.data.dataset import Sequences
from tests.recsys.testing.synthetic import sequences, two_tastes


@pytest.fixture
def tastes() -> Sequences:
    return sequences(two_tastes(60, 40, events_per_user=12, seed=7))
