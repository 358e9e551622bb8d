"""A request has the lists that it has in a batch, from every source of a bundle."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import ItemMask, TopK, no_items
from serving.query import hydrate
from serving.schemas import Context, Request
from serving.settings import ServingOptions
from serving.sources import sources_of
from serving.surfaces import HOME
from tests.recsys.testing.tensors import as_lists, assert_same_lists, rounding

CLOSE = rounding(200, size=10.0)
K = 30


@pytest.fixture(scope="module")
def world(ranked):
    return ranked, sources_of(ranked, ServingOptions(profile="full"), learned_content=True)


def batched(queries):
    """Put the features of single queries into one batch."""
    names = queries[0].features.features
    parts = {name: [query.features[name].values for query in queries] for name in names}
    return JaggedBatch(
        {
            name: Jagged(torch.cat(own), torch.tensor([0, *map(len, own)]).cumsum(0))
            for name, own in parts.items()
        }
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    histories=st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4),
    left_out=st.lists(st.integers(1, 40), max_size=30),
)
def test_a_request_has_the_lists_that_it_has_in_a_batch(world, histories, left_out):
    bundle, sources = world
    surface, context = HOME.as_evaluated(True), Context(unix_time=1_800_000_000)
    queries = [
        hydrate(Request(session=[f"item-{row}" for row in rows], context=context), bundle, surface)
        for rows in histories
    ]
    mask = ItemMask.all_but(bundle.num_item_rows, np.array(left_out, np.int64))
    allowed = mask.as_bool().expand(len(queries), -1).clone()
    with torch.inference_mode():
        for source in sources.values():
            lists = source(batched(queries), allowed, K).lists
            for place, query in enumerate(queries):
                found = source.one(query, mask, K)
                own = no_items(1, K) if found is None else as_lists(found, K)
                truth = TopK(*(part[place : place + 1] for part in lists))
                assert_same_lists(own, truth, CLOSE)
