import pytest
import torch

from recsys.layers.codes.decoder import (
    CodeBlock,
    CodeBlockConfig,
    DistanceBias,
    SharedContext,
)

BATCH, WIDTH, TOKENS, PLACES, DIM, HEADS = 2, 3, 4, 6, 8, 2


def small_block() -> CodeBlock:
    torch.manual_seed(0)
    config = CodeBlockConfig(dim=DIM, num_heads=HEADS, hidden_dim=16, dropout=0.0)
    return CodeBlock(config).eval()


def context_of(width: int) -> SharedContext:
    bias = torch.randn(BATCH, HEADS, width, PLACES)
    bias[..., 4:] = -torch.inf
    keys, values = torch.randn(2, BATCH, HEADS, PLACES, DIM // HEADS)
    return SharedContext(keys, values, bias)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, WIDTH])
def test_tokens_decoded_one_by_one_are_those_decoded_at_once(width: int) -> None:
    block, context = small_block(), context_of(width)
    tokens = torch.randn(BATCH, WIDTH, TOKENS, DIM)
    at_once, _ = block.decode(tokens, context, None)
    past = None
    for place in range(TOKENS):
        one, past = block.decode(tokens[:, :, place : place + 1], context, past)
        torch.testing.assert_close(one[:, :, 0], at_once[:, :, place])


@torch.no_grad()
def test_what_is_masked_in_the_context_is_never_read() -> None:
    block, context = small_block(), context_of(1)
    tokens = torch.randn(BATCH, WIDTH, 1, DIM)
    before, _ = block.decode(tokens, context, None)
    context.values[:, :, 4:] = 1e6
    after, _ = block.decode(tokens, context, None)
    assert torch.equal(before, after)


@torch.no_grad()
def test_pairs_of_places_are_looked_up_by_their_distance() -> None:
    bias = DistanceBias(HEADS, 4, 9)
    bias.weights.normal_()
    place = torch.arange(7)
    distance = place[:, None] - place[None, :]
    expected = bias(distance).transpose(0, 1).masked_fill(distance < 0, -torch.inf)
    pairs = bias.pairs(7)
    assert torch.equal(pairs, expected)
    assert pairs.is_contiguous()  # as attention wants it
