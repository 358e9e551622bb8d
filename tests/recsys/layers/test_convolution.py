"""A causal convolution next to attention: known answers, and the last event alone."""

import torch

from recsys.layers.attention.softmax import (
    AttentionBlock,
    BlockConfig,
    ConvolutionBlock,
    SequenceLayout,
)

OFFSETS = torch.tensor([0, 3, 4, 10])


def test_the_block_reads_the_mean_of_attention_and_of_earlier_events_by_distance():
    torch.manual_seed(0)
    config = BlockConfig(dim=8, num_heads=2, hidden_dim=16, dropout=0.0, max_length=6)
    block = ConvolutionBlock(config).eval()
    block.taps.data.normal_()
    block.bias.positions.data.normal_()
    events = torch.randn(10, 8)
    segments = torch.repeat_interleave(torch.arange(3), OFFSETS.diff())
    layout = SequenceLayout.of(OFFSETS, segments, 6, None)
    normed = block.attention_norm(events)
    attended = AttentionBlock._read(block, normed, layout)
    for event, first in ((2, 0), (3, 3), (9, 4)):
        near = range(first, event + 1)
        read = sum(block.taps[:, event - other] * normed[other] for other in near)
        mean = 0.5 * (attended[event] + read)
        torch.testing.assert_close(block._read(normed, layout)[event], mean)
    last = OFFSETS[1:] - 1
    torch.testing.assert_close(block.last(events, layout), block(events, layout)[last])
