"""Sparse and convolution blocks against loops over events, prefixes and the last event."""

import math

import pytest
import torch
from torch import Tensor

from recsys.layers.attention import sparse
from recsys.layers.attention.softmax import (
    AttentionBlock,
    BlockConfig,
    ConvolutionBlock,
    SequenceLayout,
)
from recsys.layers.attention.sparse import SparseBlock

CONFIG = BlockConfig(dim=8, num_heads=2, hidden_dim=8, dropout=0.0, max_length=100)


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> SparseBlock:
    for name, value in (("WINDOW", 6), ("BLOCK", 4), ("CHOSEN", 2)):
        monkeypatch.setattr(sparse, name, value)
    torch.manual_seed(0)
    made = SparseBlock(CONFIG).double().eval()
    with torch.no_grad():
        made.near.normal_()
    return made


def laid_out(*lengths: int) -> tuple[Tensor, SequenceLayout]:
    generator = torch.Generator().manual_seed(1)
    events = torch.randn(sum(lengths), CONFIG.dim, generator=generator, dtype=torch.float64)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return events, SequenceLayout.of(offsets, segments, CONFIG.max_length, None)


def softmax_of(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    return torch.softmax(torch.stack(scores), 0) @ torch.stack(values)


def slowly(block: SparseBlock, events: Tensor) -> Tensor:
    """Read one sequence event by event, head by head."""
    normed = block.attention_norm(events)
    width = CONFIG.dim // CONFIG.num_heads
    query, key, value = (
        part.view(len(events), CONFIG.num_heads, width)
        for part in block.query_key_value(normed).chunk(3, dim=1)
    )
    gates = block.gates(normed).sigmoid().view(len(events), 2, CONFIG.num_heads)
    read = torch.zeros_like(query)
    for at in range(len(events)):
        blocks = [range(b, b + 4) for b in range(0, at + 1, 4) if b + 4 <= at - 6 + 1]
        for head in range(CONFIG.num_heads):
            own = query[at, head] / math.sqrt(width)
            near = range(max(0, at - 5), at + 1)
            bias = [block.near[head, block.buckets[at - one]] for one in near]
            scores = [own @ key[one, head] + more for one, more in zip(near, bias, strict=True)]
            found = softmax_of(scores, [value[one, head] for one in near])
            if blocks:
                means = [key[list(one), head].mean(0) for one in blocks]
                fits = [own @ mean for mean in means]
                far = softmax_of(fits, [value[list(one), head].mean(0) for one in blocks])
                best = sorted(range(len(blocks)), key=lambda one: -float(fits[one]))[:2]
                inside = [one for number in best for one in blocks[number]]
                whole = softmax_of(
                    [own @ key[one, head] for one in inside], [value[one, head] for one in inside]
                )
                found = found + gates[at, 0, head] * far + gates[at, 1, head] * whole
            read[at, head] = found
    state = events + block.output(read.flatten(1))
    return state + block.hidden(state)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 5, 6, 7, 10, 11, 31])
def test_it_agrees_with_loops(block: SparseBlock, length: int) -> None:
    events, layout = laid_out(length)
    torch.testing.assert_close(block(events, layout), slowly(block, events))


@torch.no_grad()
def test_nothing_later_and_no_other_sequence_is_read(block: SparseBlock) -> None:
    events, layout = laid_out(23, 1, 9)
    together = block(events, layout)
    for begin, end in ((0, 23), (23, 24), (24, 33)):
        for length in range(1, end - begin + 1):
            _, alone = laid_out(length)
            part = block(events[begin : begin + length], alone)
            torch.testing.assert_close(part, together[begin : begin + length])


@torch.no_grad()
def test_the_last_events_alone_are_those_of_the_whole(block: SparseBlock) -> None:
    events, layout = laid_out(23, 1, 9, 40)
    expected = block(events, layout)[layout.offsets[1:] - 1]
    torch.testing.assert_close(block.last(events, layout), expected)


@torch.no_grad()
def test_the_block_reads_the_mean_of_attention_and_of_earlier_events_by_distance():
    torch.manual_seed(0)
    convolution = ConvolutionBlock(CONFIG).double().eval()
    convolution.taps.normal_()
    convolution.bias.positions.normal_()
    events, layout = laid_out(3, 1, 6)
    normed = convolution.attention_norm(events)
    attended = AttentionBlock._read(convolution, normed, layout)
    for event, first in ((2, 0), (3, 3), (9, 4)):
        near = range(first, event + 1)
        read = sum(convolution.taps[:, event - other] * normed[other] for other in near)
        mean = 0.5 * (attended[event] + read)
        torch.testing.assert_close(convolution._read(normed, layout)[event], mean)
    last = layout.offsets[1:] - 1
    whole = convolution(events, layout)
    torch.testing.assert_close(convolution.last(events, layout), whole[last])
