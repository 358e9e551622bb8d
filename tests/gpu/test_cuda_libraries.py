"""The CUDA builds of FBGEMM, TorchRec and faiss; each is skipped where it is not installed."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_build import FaissIndexConfig
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.index_recall import measure_recall, tune_effort

pytestmark = pytest.mark.gpu

TABLES = [
    TableConfig(name="item", num_rows=5_000, embedding_dim=32, features=("history", "item")),
    TableConfig(
        name="category",
        num_rows=40,
        embedding_dim=32,
        features=("item.categories",),
        pooling="mean",
    ),
]
# Float32 sums in another order, of at most 60 rows of length 1.
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def random_batch(weighted: bool) -> JaggedBatch:
    """Histories of 0 to 60 values, some empty, ids repeated."""
    random = np.random.default_rng(2)

    def feature(num_rows: int, longest: int) -> Jagged:
        lengths = random.integers(0, longest + 1, 256)
        values = Jagged(
            torch.from_numpy(random.integers(0, num_rows, lengths.sum())),
            torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        )
        if not weighted:
            return values
        return values._replace(weights=torch.from_numpy(random.random(lengths.sum())).float())

    return JaggedBatch(
        {
            "history": feature(5_000, 60),
            "item": feature(5_000, 1),
            "item.categories": feature(40, 3),
        }
    )


def pooled_and_gradients(
    backend: str, device: torch.device, weighted: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(4)
    bags = EmbeddingBags(TABLES, backend).to(device)
    pooled = bags(random_batch(weighted).to(device))
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros((), device=device)
    for value in pooled.values():
        total = total + (value * torch.randn(value.shape, generator=generator).to(device)).sum()
    total.backward()
    gradients = {table.name: bags.weight(table.name).grad for table in TABLES}
    return pooled, gradients


@pytest.mark.parametrize("weighted", [False, True])
def test_torchrec_pools_on_cuda_as_torch_does(cuda: torch.device, weighted: bool):
    pytest.importorskip("torchrec", reason="needs torchrec and the CUDA build of fbgemm-gpu")
    ours, our_gradients = pooled_and_gradients("torchrec", cuda, weighted)
    theirs, their_gradients = pooled_and_gradients("torch", cuda, weighted)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].device == cuda
        torch.testing.assert_close(ours[name], value, **TOLERANCE)
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, **TOLERANCE)


def test_fbgemm_fused_tables_take_one_step_as_torch_does(cuda: torch.device):
    """FBGEMM's fused lookup with SGD inside its backward against the same step by hand."""
    pytest.importorskip("fbgemm_gpu", reason="needs the CUDA build of fbgemm-gpu")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    fused = SplitTableBatchedEmbeddingBagsCodegen(
        [(5_000, 32, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=0.5,
        device=cuda,
    )
    (table,) = fused.split_embedding_weights()
    torch.manual_seed(6)
    table.data.normal_()
    plain = torch.nn.EmbeddingBag.from_pretrained(
        table.detach().clone(), freeze=False, mode="sum", include_last_offset=True
    )
    history = random_batch(weighted=False).to(cuda)["history"]
    ours, theirs = fused(history.values, history.offsets), plain(history.values, history.offsets)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)

    direction = torch.randn_like(theirs)
    ours.backward(direction)
    theirs.backward(direction)
    with torch.no_grad():
        plain.weight -= 0.5 * plain.weight.grad
    torch.cuda.synchronize()
    torch.testing.assert_close(table.data, plain.weight.data, atol=1e-4, rtol=1e-5)


def faiss_gpu() -> None:
    faiss = pytest.importorskip("faiss", reason="needs faiss-gpu")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this faiss is faiss-cpu, needs faiss-gpu")


def vectors(num_rows: int) -> torch.Tensor:
    """Unit vectors around 200 centres."""
    generator = torch.Generator().manual_seed(8)
    centres = torch.randn(200, 32, generator=generator)
    cluster = torch.randint(0, 200, (num_rows,), generator=generator)
    return normalize(centres[cluster] + 0.7 * torch.randn(num_rows, 32, generator=generator))


ITEMS = vectors(60_000)
QUERIES = normalize(ITEMS[500:756] + 0.1 * vectors(256))


def index_of(kind: str) -> FaissIndex:
    return build_index(ITEMS, FaissIndexConfig(kind=kind))


def test_faiss_flat_on_the_gpu_finds_what_the_cpu_finds(cuda: torch.device):
    faiss_gpu()
    whole = torch.from_numpy(np.random.default_rng(9).integers(-4, 5, (30_000, 32))).float()
    index = build_index(whole, FaissIndexConfig(kind="flat"))
    there = index.search(whole[:100], 100)
    assert index.to(cuda).device == cuda
    here = index.search(whole[:100].to(cuda), 100)
    # Whole numbers: nothing is rounded.
    assert torch.equal(here.scores, there.scores)

    index = index_of("flat")
    there, here = index.search(QUERIES, 100), index.to(cuda).search(QUERIES, 100)
    torch.testing.assert_close(here.scores, there.scores, atol=1e-5, rtol=0)
    assert measure_recall(index, QUERIES, ITEMS) > 0.9999
    assert torch.equal(index.to("cpu").search(QUERIES, 100).item_rows, there.item_rows)


def test_faiss_ivf_on_the_gpu_finds_as_much_as_on_the_cpu(cuda: torch.device):
    faiss_gpu()
    index = index_of("ivf_sq8")
    tune_effort(index, QUERIES, ITEMS, target=0.99)
    on_cpu = measure_recall(index, QUERIES, ITEMS)
    on_gpu = measure_recall(index.to(cuda), QUERIES, ITEMS)
    assert on_gpu == pytest.approx(on_cpu, abs=0.003)
    found = index.search(QUERIES, 50)
    true = (QUERIES[:, None] * ITEMS[found.item_rows]).sum(2)
    torch.testing.assert_close(found.scores, true, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", ["flat", "ivf_sq8"])
def test_masks_padding_long_lists_and_new_items_hold_on_the_gpu(cuda: torch.device, kind: str):
    faiss_gpu()
    index = index_of(kind).to(cuda)
    mask = ItemMask(np.random.default_rng(1).random(len(ITEMS)) < 0.5)
    assert mask.allows(index.search(QUERIES, 20, mask).item_rows.numpy()).all()
    assert (index.search(QUERIES, 20).item_rows > 0).all()
    assert (index.search(QUERIES[:2], 3_000).item_rows > 0).all()
    index.add(QUERIES)
    found = index.search(QUERIES, 1).item_rows.squeeze(1)
    assert found.tolist() == list(range(len(ITEMS), len(ITEMS) + len(QUERIES)))


def test_the_gpu_index_equals_exact_search_on_the_gpu(cuda: torch.device):
    faiss_gpu()
    ours = index_of("flat").to(cuda).search(QUERIES, 50)
    theirs = exact_top_k(QUERIES.to(cuda), ITEMS.to(cuda), 50)
    torch.testing.assert_close(ours.scores, theirs.scores.cpu(), atol=1e-5, rtol=0)


def test_a_gpu_that_is_not_there_is_named():
    faiss_gpu()
    with pytest.raises(ValueError, match="there is no device 'cuda:99': faiss sees"):
        index_of("flat").to("cuda:99")
