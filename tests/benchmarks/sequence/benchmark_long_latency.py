"""Time histories of 10,000 events on one core: whole, with a kept state, and the latest 200.

One vector of a history for a request, without ranking: sparse attention reads all events, from
scratch or one further event beside the kept means, attention the latest 200. Untrained weights cost
the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from tests.benchmarks.harness import Row, alternating_ms, command_line, write_results

EVENTS, MORE, ROUNDS = 10_000, 1_000, 30
GOAL_MS = 10.0
DIM = 128


def one_of(block: str, num_rows: int = 10_001) -> OneHistory:
    torch.manual_seed(0)
    config = SequenceConfig(
        embedding_dim=DIM,
        block=block,  # type: ignore[arg-type]
        hidden_dim=2 * DIM,
        max_length=200 if block == "attention" else EVENTS + 1_000,
        absolute_positions=block == "attention",
        backend="torch",
    )
    inputs = FeatureSizes(num_item_rows=num_rows, content_dim=0)
    counts = torch.ones(num_rows, dtype=torch.int64)
    model = SequenceModel(config, inputs, ItemCatalogue.empty(num_rows), counts)
    return OneHistory(model.eval())


class Timed:
    """Sparse attention to one history: a further event beside the kept means, or all events."""

    def __init__(self, rows: Tensor) -> None:
        self.one, self.rows = one_of("sparse"), rows
        self.ends = iter(range(EVENTS + 1, EVENTS + MORE))
        assert self.one._kept is not None
        self.kept = self.one._kept
        self.one.query_vector(rows[:EVENTS], None)

    @torch.no_grad()
    def further(self) -> None:
        self.one.query_vector(self.rows[: next(self.ends)], None)

    @torch.no_grad()
    def whole(self) -> None:
        self.kept._advance(self.rows[:EVENTS], None, None, 0)

    def state_kib(self) -> float:
        return sum(one.num_bytes for one in self.kept._kept.values()) / 2**10


def measured() -> list[Row]:
    """Time sparse attention beside attention to the latest events."""
    rows = torch.randint(1, 10_001, (EVENTS + MORE,))
    sparse, present = Timed(rows), one_of("attention")

    def latest() -> None:
        with torch.no_grad():
            present.query_vector(rows[:EVENTS], None)

    turns = {"attention": latest, "further": sparse.further, "whole": sparse.whole}
    ms = dict(alternating_ms(turns, rounds=ROUNDS))
    name = f"width {DIM}, blocks 1"
    beside = {"unit": "ms", "peer": "attention", "peer_value": ms["attention"]}
    return [
        Row(name=f"{name}, attention to the latest 200", value=ms["attention"], unit="ms"),
        Row(
            name=f"{name}, sparse, a further event with a kept state",
            value=ms["further"],
            at_most=GOAL_MS,
            **beside,  # type: ignore[arg-type]
        ),
        Row(
            name=f"{name}, sparse, {EVENTS} events from scratch",
            value=ms["whole"],
            **beside,  # type: ignore[arg-type]
        ),
        Row(
            name=f"{name}, sparse, kept with {EVENTS} events",
            value=sparse.state_kib(),
            unit="KiB",
        ),
    ]


def main() -> None:
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    write_results("long_latency", measured())


if __name__ == "__main__":
    main()
