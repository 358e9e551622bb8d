from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pipelines.adapters.retriever import new_adapter
from pipelines.config.trainings import AdapterConfig
from recsys.models.adapted import ITEM_TABLE
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

NUM_ITEM_ROWS = 30
OWN = torch.arange(10, 25)
# Means of 15 items' vectors, from 6 content columns and rank 3.
CLOSE = rounding(15 + 6 + 3)


def model_that_met(rows: Tensor) -> SequenceModel:
    torch.manual_seed(0)
    counts = torch.zeros(NUM_ITEM_ROWS, dtype=torch.int64)
    counts[rows] = 3
    catalogue = ItemCatalogue(
        torch.randn(NUM_ITEM_ROWS, 6), ItemCatalogue.empty(NUM_ITEM_ROWS).categories
    )
    config = SequenceConfig(embedding_dim=16, hidden_dim=32, backend="torch")
    inputs = FeatureSizes(num_item_rows=NUM_ITEM_ROWS, content_dim=6)
    return SequenceModel(config, inputs, catalogue, counts).eval()


def task_of(config: AdapterConfig) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(seed=0, adapter=config), item_rows=OWN, device=torch.device("cpu")
    )


SETTINGS = AdapterConfig(rank=3, max_share=1.0, tables=(ITEM_TABLE,))


@torch.no_grad()
def test_items_that_the_base_never_met_are_centred_and_those_that_it_knows_are_not():
    known, new = model_that_met(torch.arange(1, 25)), model_that_met(torch.arange(1, 15))
    adapter = new_adapter(task_of(SETTINGS), new)
    centre = new.item_inputs(OWN).mean(0)
    torch.testing.assert_close(centre, torch.zeros_like(centre), rtol=0, atol=CLOSE)
    assert adapter.table_correction(ITEM_TABLE).rows.tolist() == OWN.tolist()
    before = known.item_inputs(OWN)
    new_adapter(task_of(SETTINGS), known)
    assert torch.equal(known.item_inputs(OWN), before)
