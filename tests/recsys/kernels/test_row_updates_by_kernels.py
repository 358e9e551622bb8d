"""Rows that our kernels move, in the interpreter, against those that plain torch moves."""

from __future__ import annotations

import pytest
import torch

from tests.recsys.layers.embedding.test_row_updates import layer_of, random_batch, step


@pytest.mark.interpreted(only=True)
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adam"])
def test_kernels_move_rows_and_name_their_state_as_torch_does(rule: str) -> None:
    ours, theirs = layer_of("triton", rule, 0.5), layer_of("torch", rule, 0.5)
    for number in range(2):
        for bags in (ours, theirs):
            step(bags, random_batch(number))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    state = ours.update_state()
    for name, value in theirs.update_state().items():
        if name.startswith("step/") and "adam" not in rule:
            continue  # no rule but Adam depends on the steps
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)
