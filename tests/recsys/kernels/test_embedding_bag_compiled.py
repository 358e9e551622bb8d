"""What the backward's kernels become for a GPU, read off on a machine without one."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from recsys.kernels.embedding_bag import triton_backward
from recsys.kernels.embedding_bag.optimizer import Optimizer
from recsys.kernels.embedding_bag.updating import LONG, tile_rows

TYPES = {
    "sorted_keys": "*i32", "work": "*i32", "counts": "*i32", "partials": "*fp32",
    "weights": "*fp32", "first": "*fp32", "second": "*fp32", "step": "*i64",
    "learning_rate": "*fp32", "corrections": "*fp32", "skip": "*i32", "num_ids": "i32",
    "stride": "i64", "first_key": "i64", "end_key": "i64", "start": "i64", "seed": "i64",
    "epsilon": "fp32",
}  # fmt: skip


def update_long(rule: Optimizer, dim: int) -> str:
    """Compile the update of long runs for an H200, as it is launched there; return its PTX."""
    kernel = triton_backward._update_long
    block_d = 1 << (dim - 1).bit_length()
    constants = {
        "grad_scale": None, "max_row_norm": None, "beta1": 0.9, "beta2": 0.999, "dim": dim,
        "block_d": block_d, "block_c": tile_rows(LONG, block_d), "block_few": 8, "chunk": 64,
        "rule": int(rule), "stochastic": False, "shared": LONG["num_warps"] > 1,
    }  # fmt: skip
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: TYPES.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if TYPES.get(name, "").startswith("*")
        },
    )
    options = {"num_warps": LONG["num_warps"], "maxnreg": LONG["registers"]}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles nothing")
@pytest.mark.parametrize("dim", [1, 8, 64, 128])
@pytest.mark.parametrize("rule", [one for one in Optimizer if one != Optimizer.SGD])
def test_all_warps_read_a_rows_state_before_one_writes_it(rule: Optimizer, dim: int) -> None:
    """Two warps hold the same row, so a barrier stands between its last read and each write."""
    events = re.findall(r"ld\.global|st\.global|bar\.sync", update_long(rule, dim))
    *of_state, _of_row = (at for at, event in enumerate(events) if event == "st.global")
    assert len(of_state) == (1 if rule == Optimizer.ROWWISE_ADAGRAD else 2)
    for place in of_state:
        before = events[:place]
        last = max(at for at, event in enumerate(before) if event != "st.global")
        assert before[last] == "bar.sync"
