"""Layers against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.evaluation.calibration import expected_calibration_error, reliability_curve
from recsys.layers.attention.softmax import by_pair
from recsys.layers.attention.target import TargetAttention
from recsys.layers.calibrator import Calibrator
from recsys.layers.codes.decoder import SharedContext, joint_attention, merged_shares, side_by_side
from recsys.layers.dropout import Dropout
from recsys.models.ranker.network import HAS_ONEDNN, CrossNetwork, WideLinear
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics


def drawn(num_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits that are twice too sure and shifted, labels, and the true chances."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(num_rows, 1, generator=generator) * 1.5 - 1
    labels = (torch.rand(num_rows, 1, generator=generator) < true.sigmoid()).float()
    return 2 * true + 1, labels, true.sigmoid()


def test_distorted_logits_become_frequencies():
    calibrator = Calibrator(1)
    logits, labels, _ = drawn(20_000, 0)
    fresh, fresh_labels, chances = drawn(20_000, 1)
    before = reliability_curve(calibrator(fresh)[:, 0], fresh_labels[:, 0])
    calibrator.fit(logits, labels)
    found = calibrator(fresh)
    after = reliability_curve(found[:, 0], fresh_labels[:, 0])
    assert expected_calibration_error(before) > 0.1
    assert expected_calibration_error(after) < 0.02
    typical = (chances > 0.05) & (chances < 0.9)
    assert float((found - chances)[typical].abs().max()) < 0.02


def test_unobserved_labels_are_left_out_and_one_class_is_refused():
    logits, labels, _ = drawn(2_000, 4)
    one, other = Calibrator(1), Calibrator(1)
    one.fit(logits[:1000], labels[:1000])
    labels[1000:] = torch.nan
    other.fit(logits, labels)
    torch.testing.assert_close(one.values, other.values)
    assert_refused(
        {
            "0 positive of 2000": lambda: other.fit(logits, torch.zeros_like(labels)),
            "wrong way round": lambda: other.fit(-logits[:1000], labels[:1000]),
        }
    )


def test_a_loaded_line_replaces_the_one_before_and_a_curve_is_refused():
    logits, labels, _ = drawn(2_000, 5)
    fitted, loaded = Calibrator(1), Calibrator(1)
    fitted.fit(logits, labels)
    loaded(logits)
    state = fitted.state_dict()
    loaded.load_state_dict(state)
    assert torch.equal(loaded(logits), fitted(logits))
    state["values"] = state["values"] ** 3
    loaded.load_state_dict(state)
    with pytest.raises(ValueError, match="off its line"):
        loaded(logits)


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


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_pairs_and_gradients_are_those_of_an_indexed_lookup(length: int) -> None:
    torch.manual_seed(length)
    by_distance = torch.randn(2, length, dtype=torch.float64, requires_grad=True)
    place = torch.arange(length)
    distance = place[:, None] - place  # [T, T]
    expected = by_distance[:, distance.clamp_min(0)] * (distance >= 0)
    found = by_pair(by_distance)
    assert torch.equal(found, expected)
    weights = torch.randn(2, length, length, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((one * weights).sum(), by_distance)[0] for one in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(384, 128, 128), (1, 5, 3), (0, 4, 4), (33, 96, 160)])
@pytest.mark.parametrize("bias", [True, False])
def test_serving_and_training_multiply_alike(shape, bias):
    num_rows, inputs, outputs = shape
    torch.manual_seed(0)
    layer, rows = WideLinear(inputs, outputs, bias=bias), torch.randn(num_rows, inputs)
    expected = functional.linear(rows.double(), layer.weight.double(), None)
    if bias:
        expected = expected + layer.bias.double()
    with torch.no_grad():
        served = layer(rows)
    torch.testing.assert_close(served.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(rows), served, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")
def test_a_rows_bits_do_not_depend_on_its_place_in_a_tile():
    torch.manual_seed(1)
    layer, rows = WideLinear(128, 128), torch.randn(384, 128)
    with torch.no_grad():
        together, order = layer(rows), torch.randperm(384)
        assert torch.equal(layer(rows[order]), together[order])


@torch.no_grad()
def test_two_softmaxes_merged_are_one() -> None:
    """What a fused kernel leaves to do, held to the scores written out."""
    torch.manual_seed(0)
    batch, width, tokens, places, heads, dim = 2, 3, 4, 6, 2, 4
    bias = torch.randn(batch, heads, 1, places)
    bias[..., 4:] = -torch.inf
    context = SharedContext(*torch.randn(2, batch, heads, places, dim), bias)
    query = torch.randn(batch, width, tokens, heads, dim)
    values = torch.randn(batch, width, 5, heads, dim)
    scores = 20 * torch.randn(batch, width, tokens, heads, 5)
    scores[..., 4] = -torch.inf
    expected = joint_attention(query, scores, values, context)
    shared = side_by_side(query) @ context.keys.mT * dim**-0.5 + context.bias
    single = scores.flatten(1, 2).transpose(1, 2)
    read, weights = merged_shares(shared.softmax(-1) @ context.values, shared.logsumexp(-1), single)
    own = weights.transpose(1, 2).reshape(scores.shape)  # [B, W, S, H, all S]
    found = read.transpose(1, 2).reshape(query.shape)
    found = found + torch.einsum("bwsha,bwahd->bwshd", own, values)
    torch.testing.assert_close(found.flatten(3), expected)


def test_dropout_zeroes_its_share_and_keeps_the_mean_and_the_gradient():
    torch.manual_seed(3)
    values = torch.full((401, 257), 2.0, requires_grad=True)
    layer = Dropout(0.3)
    dropped = layer(values)
    scale = 256 / (256 - 77)
    assert dropped.detach().unique().tolist() == pytest.approx([0.0, 2.0 * scale])
    assert float((dropped == 0).double().mean()) == pytest.approx(77 / 256, abs=0.01)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach() / 2.0)
    torch.manual_seed(3)
    assert torch.equal(layer(values), dropped)
    assert torch.equal(layer.eval()(values), values)
    assert not Dropout(1.0)(values).any()
