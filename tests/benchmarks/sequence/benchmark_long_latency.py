"""Time histories of 10,000 events on one core: whole, with a kept state, and the latest 200.

One vector of a history for a request, without ranking: the gated delta model reads all events, from
scratch or one further event beside its kept state; sparse attention reads all from scratch, the
present model the latest 200. Untrained weights cost the same. All take turns in one run.
"""

from __future__ import annotations

import torch

from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.kept import KeptHistories
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from tests.benchmarks.harness import Row, alternating_ms, command_line, write_results

EVENTS, ROUNDS = 10_000, 30
GOAL_MS = 10.0
SIZES = ((128, 1), (128, 2), (256, 4))
"""Width and blocks: the default, the long worlds' and MovieLens-1M's."""


def one_of(block: str, dim: int, blocks: int, num_rows: int = 10_001) -> OneHistory:
    torch.manual_seed(0)
    config = SequenceConfig(
        embedding_dim=dim,
        block=block,  # type: ignore[arg-type]
        num_blocks=blocks,
        num_heads=1 if dim == 128 else 4,
        hidden_dim=2 * dim,
        max_length=200 if block == "attention" else EVENTS + 1_000,
        absolute_positions=block == "attention",
        backend="torch",
    )
    inputs = FeatureSizes(num_item_rows=num_rows, content_dim=0)
    counts = torch.ones(num_rows, dtype=torch.int64)
    model = SequenceModel(config, inputs, ItemCatalogue.empty(num_rows), counts)
    return OneHistory(model.eval())


def measured(dim: int, blocks: int) -> list[Row]:
    long, present = one_of("gated_delta", dim, blocks), one_of("attention", dim, blocks)
    rows = torch.randint(1, 10_001, (EVENTS + 1_000,))
    kept, ends = long._kept, iter(range(EVENTS + 1, EVENTS + 1_000))
    assert isinstance(kept, KeptHistories)
    long.query_vector(rows[:EVENTS], None)

    def one_more() -> None:
        long.query_vector(rows[: next(ends)], None)

    def whole() -> None:
        encoder = kept._encoder
        with torch.no_grad():
            encoder.advance(kept._inputs.index_select(0, rows[:EVENTS]), None, None, 0)

    def latest() -> None:
        with torch.no_grad():
            present.query_vector(rows[:EVENTS], None)

    calls = {"kept": one_more, "whole": whole, "present": latest}
    if blocks == 1:
        sparse = one_of("sparse", dim, blocks)

        def chosen() -> None:
            with torch.no_grad():
                sparse.query_vector(rows[:EVENTS], None)

        calls["sparse"] = chosen
    ms = alternating_ms(calls, rounds=ROUNDS)
    name = f"width {dim}, blocks {blocks}"
    state = sum(one.num_bytes for one in kept._kept.values()) / 2**10
    return [
        Row(
            name=f"{name}: one event with a kept state",
            value=ms["kept"],
            unit="ms",
            at_most=GOAL_MS,
        ),
        Row(name=f"{name}: {EVENTS} events from scratch", value=ms["whole"], unit="ms"),
        Row(name=f"{name}: attention, latest 200", value=ms["present"], unit="ms"),
        Row(name=f"{name}: kept with {EVENTS} events", value=state, unit="KiB"),
        *(
            Row(name=f"{name}: sparse, {EVENTS} events from scratch", value=value, unit="ms")
            for call, value in ms.items()
            if call == "sparse"
        ),
    ]


def main() -> None:
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [row for size in SIZES for row in measured(*size)]
    write_results("long_latency", rows)


if __name__ == "__main__":
    main()
