import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora import LoraAdapter, LoraConfig
from recsys.models.adapted import AdaptedRetriever, adapted_layers
from recsys.models.item_tower import ItemCatalogue, TwoTowerInputs
from recsys.models.sequence import SequenceConfig, SequenceModel

pytestmark = pytest.mark.gpu
NUM_ITEM_ROWS = 200
DOMAINS = ["books", None, "films", "books"] * 40


def retriever_on(device: str) -> AdaptedRetriever:
    torch.manual_seed(0)
    config = SequenceConfig(embedding_dim=32, hidden_dim=64, max_length=9, backend="torch")
    inputs = TwoTowerInputs(num_item_rows=NUM_ITEM_ROWS, content_dim=8)
    catalogue = ItemCatalogue(
        torch.randn(NUM_ITEM_ROWS, 8), ItemCatalogue.empty(NUM_ITEM_ROWS).categories
    )
    counts = torch.ones(NUM_ITEM_ROWS, dtype=torch.int64)
    model = SequenceModel(config, inputs, catalogue, counts).eval()
    adapters = {}
    for domain in ("books", "films"):
        adapter = LoraAdapter(
            model, LoraConfig(targets=adapted_layers(model), rank=4, max_share=1.0)
        )
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.normal_(std=0.1)
        adapters[domain] = adapter.to(device).eval()
    return AdaptedRetriever(model.to(device).eval(), adapters)


@torch.no_grad()
def test_mixed_batches_are_read_as_on_a_cpu():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 12, (len(DOMAINS),), generator=generator).tolist()
    lists = [torch.randint(1, NUM_ITEM_ROWS, (length,)).tolist() for length in lengths]
    queries = JaggedBatch({"history": Jagged.from_lists(lists)})
    expected = retriever_on("cpu").score(queries, DOMAINS)
    found = retriever_on("cuda").score(queries.to("cuda"), DOMAINS)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)
