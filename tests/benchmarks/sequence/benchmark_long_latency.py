"""Time histories of 10,000 events on one core: whole, with a kept state, and the latest 200.

One vector of a history for a request, without ranking: gated delta and sparse attention read all
events, from scratch or one further event beside what is kept, the present model the latest 200.
Untrained weights cost the same. What takes less than ten milliseconds takes turns.
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


class Timed:
    """Blocks of one kind at one history: a further event beside what is kept, or all of them."""

    def __init__(self, block: str, dim: int, blocks: int, rows: Tensor) -> None:
        self.one, self.rows = one_of(block, dim, blocks), rows
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


def measured(dim: int, blocks: int) -> list[Row]:
    """Time both kinds of long histories beside the present model; sparse where it is folded."""
    rows = torch.randint(1, 10_001, (EVENTS + MORE,))
    kinds = {"gated_delta": GOAL_MS} | ({"sparse": GOAL_MS} if blocks == 1 else {})
    timed = {kind: Timed(kind, dim, blocks, rows) for kind in kinds}
    present = one_of("attention", dim, blocks)

    def latest() -> None:
        with torch.no_grad():
            present.query_vector(rows[:EVENTS], None)

    # Not all in turns: a whole history of gated delta leaves nothing of the others in the caches.
    short = {"attention": latest}
    short |= {f"{kind}, further": one.further for kind, one in timed.items()}
    ms = dict(alternating_ms(short, rounds=ROUNDS))
    for kind, one in timed.items():
        ms |= alternating_ms({f"{kind}, whole": one.whole}, rounds=ROUNDS)
    name, peer = f"width {dim}, blocks {blocks}", "attention"
    found = [Row(name=f"{name}, attention to the latest 200", value=ms["attention"], unit="ms")]
    for kind, one in timed.items():
        found += [
            Row(
                name=f"{name}, {kind}, a further event with a kept state",
                value=ms[f"{kind}, further"],
                unit="ms",
                peer=peer,
                peer_value=ms["attention"],
                at_most=GOAL_MS,
            ),
            Row(
                name=f"{name}, {kind}, {EVENTS} events from scratch",
                value=ms[f"{kind}, whole"],
                unit="ms",
                peer=peer,
                peer_value=ms["attention"],
            ),
            Row(
                name=f"{name}, {kind}, kept with {EVENTS} events",
                value=one.state_kib(),
                unit="KiB",
            ),
        ]
    return found


def main() -> None:
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = [row for size in SIZES for row in measured(*size)]
    write_results("long_latency", rows)


if __name__ == "__main__":
    main()
