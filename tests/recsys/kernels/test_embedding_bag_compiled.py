"""What the kernels become for a GPU, read off on a machine without one."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from recsys.kernels.embedding_bag import triton_backward, triton_rows
from recsys.kernels.embedding_bag.layout import Optimizer
from recsys.kernels.embedding_bag.updating import LONG, SHORT, tile_rows, unequal_rows

TYPES = {
    "sorted_scales": "*fp32", "grad": "*fp32", "feature_data": "*i64", "num_features": "i32",
    "grad_stride": "i64", "sorted_keys": "*i32", "work": "*i32", "counts": "*i32",
    "partials": "*fp32",
    "weights": "*fp32", "first": "*fp32", "second": "*fp32",
    "learning_rate": "*fp32", "corrections": "*fp32", "skip": "*i32", "num_ids": "i32",
    "stride": "i64", "first_key": "i64", "end_key": "i64", "start": "i64",
    "epsilon": "fp32",
}  # fmt: skip


def ptx(kernel: Any, constants: dict[str, object], num_warps: int, registers: int) -> str:
    """Compile a kernel for an H200, as it is launched there."""
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else TYPES[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if name not in constants and TYPES[name].startswith("*")
        },
    )
    options = {"num_warps": num_warps, "maxnreg": registers}
    return str(compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


def update_long(rule: Optimizer, dim: int) -> str:
    block_d = 1 << (dim - 1).bit_length()
    constants = {
        "grad_scale": None, "max_row_norm": None, "beta1": 0.9, "beta2": 0.999, "dim": dim,
        "block_d": block_d, "block_c": tile_rows(LONG, block_d), "block_few": 8, "chunk": 64,
        "rule": int(rule), "shared": LONG["num_warps"] > 1,
    }  # fmt: skip
    kernel = triton_backward._update_long
    return ptx(kernel, constants, LONG["num_warps"], LONG["registers"])


@pytest.mark.parametrize("dim", [8, 16, 32])
def test_short_runs_compile_where_rows_are_as_many_as_columns(dim: int) -> None:
    rows = unequal_rows(SHORT, dim, SHORT["num_warps"])
    constants = {
        "grad_scale": None, "max_row_norm": None, "beta1": 0.9, "beta2": 0.999, "dim": dim,
        "block_d": dim, "block_r": rows, "uniform": False, "aligned": True,
        "rule": int(Optimizer.ROWWISE_ADAGRAD), "shared": False,
        "runs": True,
    }  # fmt: skip
    kernel = triton_rows._update_rows
    assert "st.global" in ptx(kernel, constants, SHORT["num_warps"], SHORT["registers"])


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
