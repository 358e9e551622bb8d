"""Small logs for replays."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from recsys.replay.experiment import PreparedData
from tests.recsys.replay.logs import CLUSTER_SIZE, NUM_CLUSTERS, prepared_of, walks


@pytest.fixture
def log() -> PreparedData:
    return prepared_of(walks())


@pytest.fixture
def changed() -> Callable[[int], PreparedData]:
    """Make the same log with other items from a moment on."""

    def make(moment: int) -> PreparedData:
        events = walks()
        assert events.times is not None
        items = events.item_rows.copy()
        late = events.times >= moment
        items[late] = 1 + (items[late] + 12) % (NUM_CLUSTERS * CLUSTER_SIZE)
        return prepared_of(replace(events, item_rows=items))

    return make
