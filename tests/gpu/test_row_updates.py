"""Rows that move inside the backward on CUDA: our kernels and FBGEMM against plain torch."""

import pytest
import torch

from recsys.data.batch import JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags
from tests.recsys.layers.embedding.test_row_updates import RULES, layer_of, random_batch, step

pytestmark = pytest.mark.gpu

# Of the norm: sums of up to hundreds of gradients of one row, in another order.
TOLERANCE = 1e-5


@pytest.fixture(params=["triton", "torchrec"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "torchrec":
        pytest.importorskip("fbgemm_gpu", reason="needs the CUDA build of fbgemm-gpu")
    return str(request.param)


def batch_on(device: torch.device, seed: int, *, weighted: bool = False) -> JaggedBatch:
    return random_batch(seed, weighted=weighted, num_examples=1_000).to(device)


def assert_close(ours: EmbeddingBags, theirs: EmbeddingBags) -> None:
    for name, value in theirs.state_dict().items():
        assert (ours.state_dict()[name] - value).norm() < TOLERANCE * value.norm(), name
    own = ours.update_state()
    for name, value in theirs.update_state().items():
        if not name.startswith("step/"):
            assert (own[name] - value).norm() <= 10 * TOLERANCE * value.norm(), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rows_move_as_in_torch_where_the_loss_is_finite(
    cuda: torch.device, backend: str, rule: str, weighted: bool
) -> None:
    ours, theirs = (layer_of(one, rule, device=cuda) for one in (backend, "torch"))
    for seed, factor in enumerate((1.0, torch.nan, 1.0)):
        for bags in (ours, theirs):
            step(bags, batch_on(cuda, seed, weighted=weighted), factor)
    assert_close(ours, theirs)


@pytest.mark.parametrize("rule", RULES[1:])
def test_state_goes_on_in_another_backend(cuda: torch.device, backend: str, rule: str) -> None:
    for source, target in ((backend, "torch"), ("torch", backend)):
        first, second = (layer_of(one, rule, device=cuda) for one in (source, target))
        step(first, batch_on(cuda, 0))
        second.load_state_dict(first.state_dict())
        second.load_update_state(first.update_state())
        for bags in (first, second):
            step(bags, batch_on(cuda, 1))
        assert_close(second, first)
