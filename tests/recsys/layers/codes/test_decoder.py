import pytest
import torch

from recsys.layers.codes.decoder import (
    CodeBlock,
    CodeBlockConfig,
    DistanceBias,
    SharedContext,
    joint_attention,
    merged_shares,
    side_by_side,
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
def test_two_softmaxes_merged_are_one() -> None:
    """What a fused kernel leaves to do, held to the scores written out."""
    context, dim = context_of(1), DIM // HEADS
    query = torch.randn(BATCH, WIDTH, TOKENS, HEADS, dim)
    values = torch.randn(BATCH, WIDTH, 5, HEADS, dim)
    scores = 20 * torch.randn(BATCH, WIDTH, TOKENS, HEADS, 5)
    scores[..., 4] = -torch.inf
    expected = joint_attention(query, scores, values, context)
    shared = side_by_side(query) @ context.keys.mT * dim**-0.5 + context.bias
    single = scores.flatten(1, 2).transpose(1, 2)
    read, weights = merged_shares(shared.softmax(-1) @ context.values, shared.logsumexp(-1), single)
    own = weights.transpose(1, 2).reshape(scores.shape)  # [B, W, S, H, all S]
    found = read.transpose(1, 2).reshape(query.shape)
    found = found + torch.einsum("bwsha,bwahd->bwshd", own, values)
    torch.testing.assert_close(found.flatten(3), expected)


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
