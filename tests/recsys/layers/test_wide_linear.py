import pytest
import torch
from torch.nn import functional

from recsys.layers.wide_linear import HAS_ONEDNN, WideLinear

pytestmark = pytest.mark.numerics


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


def test_gradients_and_hooks_are_those_of_a_linear_layer():
    layer, rows = WideLinear(4, 3), torch.randn(6, 4, requires_grad=True)
    layer(rows).sum().backward()
    torch.testing.assert_close(rows.grad, layer.weight.detach().sum(0).expand(6, -1))
    layer.register_forward_hook(lambda _, __, output: output + 1)
    with torch.no_grad():
        hooked = layer(rows)
        plain = functional.linear(rows, layer.weight, layer.bias)
    torch.testing.assert_close(hooked, plain + 1)
