"""Cross network, target attention and examination, each against a slow truth."""

import math

import pytest
import torch

from recsys.data.batch import Jagged
from recsys.layers.attention.target import TargetAttention
from recsys.layers.calibrator import Examination
from recsys.layers.wide_linear import CrossNetwork

pytestmark = pytest.mark.numerics


def test_cross_layers_follow_the_papers_formula():
    torch.manual_seed(0)
    network, fields = CrossNetwork(5, 2), torch.randn(4, 5)
    first = fields * (fields @ network.layers[0].weight.T + network.layers[0].bias) + fields
    second = fields * (first @ network.layers[1].weight.T + network.layers[1].bias) + first
    torch.testing.assert_close(network(fields), second)


def test_a_candidate_reads_the_events_of_its_own_user():
    torch.manual_seed(2)
    attention = TargetAttention(4, 3, max_history=3)
    torch.nn.init.normal_(attention.nothing)
    history = Jagged.from_lists([[1, 2], [], [3, 4, 5]])
    inputs, candidates = torch.randn(5, 4), torch.randn(3, 2, 4)
    read = attention(candidates, attention.prepare(history, inputs))
    for user, events in enumerate([inputs[:2], inputs[:0], inputs[2:]]):
        steps = torch.arange(len(events) - 1, -1, -1)
        values = torch.cat([attention.nothing[None], events + attention.recency(steps)])
        for place in range(2):
            query = attention.query(candidates[user, place])
            weights = (attention.key(values) @ query / math.sqrt(3)).softmax(0)
            torch.testing.assert_close(read[user, place], weights @ values)


def test_likelihood_in_a_slot_is_of_examined_times_relevant():
    torch.manual_seed(3)
    layer = Examination(4)
    torch.nn.init.normal_(layer.odds)
    logits, slots = torch.randn(50, 2).double(), torch.randint(6, (50,))
    labels = torch.randint(0, 2, (50, 2)).double()
    chance = layer.curve()[slots.clamp(max=3), None].double() * logits.sigmoid()
    expected = -(labels * chance.log() + (1 - labels) * (1 - chance).log())
    torch.testing.assert_close(layer(logits, slots, labels), expected, rtol=1e-5, atol=1e-6)
    assert layer.curve()[0].item() == 1
