import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted.model import AdaptedRetriever, adapted_layers
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.adapters.captured_queries import CapturedQueries

pytestmark = pytest.mark.gpu
NUM_ITEM_ROWS = 200
DOMAINS = ["books", None, "films", "books"] * 40


def retriever_on(device: str) -> AdaptedRetriever:
    torch.manual_seed(0)
    config = SequenceConfig(embedding_dim=32, hidden_dim=64, max_length=9, backend="torch")
    inputs = FeatureSizes(num_item_rows=NUM_ITEM_ROWS, content_dim=8)
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


def mixed_queries(count: int) -> tuple[JaggedBatch, list[str | None]]:
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(0, 12, (count,), generator=generator).tolist()
    lists = [
        torch.randint(1, NUM_ITEM_ROWS, (length,), generator=generator).tolist()
        for length in lengths
    ]
    queries = JaggedBatch({"history": Jagged.from_lists(lists)}).to("cuda")
    return queries, [("books", None, "films", "unheard of")[row % 4] for row in range(count)]


@torch.no_grad()
def test_a_mixed_forward_is_that_of_merged_weights_to_a_millionth():
    retriever = retriever_on("cuda")
    queries, domains = mixed_queries(45)
    mixed = retriever.query_vectors(queries, domains)
    for domain in set(domains):
        own = [row for row, other in enumerate(domains) if other == domain]
        merged = retriever.query_vectors(queries, [domain] * len(domains))
        torch.testing.assert_close(mixed[own], merged[own], rtol=0, atol=1e-6)
    few = [domains[0], domains[2]] * 30
    queries_of_few, _ = mixed_queries(60)
    whole = retriever.query_vectors(queries_of_few, few)
    for place in (0, 1):
        merged = retriever.query_vectors(queries_of_few, [few[place]] * 60)
        torch.testing.assert_close(whole[place::2], merged[place::2], rtol=0, atol=1e-6)
    # A launch adds nothing, not even a rounding, to a row of the base.
    own = [row for row, domain in enumerate(domains) if domain in (None, "unheard of")]
    base = retriever.query_vectors(queries, [None] * len(domains))
    assert torch.equal(mixed[own], base[own])


@torch.no_grad()
def test_a_graph_gives_what_python_gives_and_a_query_the_same_bits_in_any_company():
    retriever = retriever_on("cuda")
    queries, domains = mixed_queries(45)
    expected = retriever.query_vectors(queries, domains)
    graph = CapturedQueries(retriever, num_queries=50, num_events=600)
    kept = CapturedQueries(retriever, num_queries=50, num_events=600, keep_base=True)
    torch.testing.assert_close(kept.query_vectors(queries, domains), expected, rtol=0, atol=1e-6)
    found = graph.query_vectors(queries, domains)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(graph.query_vectors(queries, domains), found)
    for rows in (torch.arange(7, 19), torch.tensor([44, 3])):
        part = JaggedBatch({"history": queries["history"].take(rows.cuda())})
        alone = graph.query_vectors(part, [domains[row] for row in rows.tolist()])
        assert torch.equal(alone, found[rows.cuda()])
    history = queries["history"]
    host = JaggedBatch({"history": Jagged(history.values.cpu(), history.offsets.cpu())})
    on_host = graph.query_vectors(host, domains)
    assert torch.equal(on_host, found)
    for domain in ("books", None):
        one = CapturedQueries(retriever, num_queries=45, num_events=600, mixed=False, domain=domain)
        merged = retriever.query_vectors(queries, [domain] * 45)
        torch.testing.assert_close(one.query_vectors(queries), merged, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"51 queries .* larger than the captured 50 and 600"):
        graph.query_vectors(*mixed_queries(51))
    with pytest.raises(ValueError, match="45 queries need 45 domains, got None"):
        graph.query_vectors(queries)
