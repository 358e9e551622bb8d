"""Time our radix sort of ids by row on one GPU beside torch.sort, which is CUB's.

Keys of as many bits as tables have rows, with their places, as the embedding bags' backward sorts
them. Results are compared first; nothing is timed where they differ.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from recsys.kernels.embedding_bag import radix_sort
from recsys.kernels.measure import median_ms
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import beside_peer

CASES = ((425_984, 26_000_001), (819_200, 10_000_001), (2_621_440, 32_000_001), (6_553_600, 8_001))
"""Ids of a batch, and keys."""
NUM_SETS = 4


def sort(own: radix_sort.Sorter, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Sort keys and their places as the backward does, memory and cleared words included."""
    count = len(keys)
    work = torch.empty(3 * count, dtype=torch.int32, device=keys.device)
    words = torch.zeros(own.num_words(count), dtype=torch.int32, device=keys.device)
    return radix_sort.sort_pairs(own, keys, None, work, words), work[:count]


def main() -> None:
    command_line(__doc__).parse_args()
    device, rows = torch.device("cuda", 0), list[Row]()
    generator = torch.Generator(device).manual_seed(0)
    for count, num_keys in CASES:
        own = radix_sort.sorter(device, count, num_keys)
        if own is None:
            raise SystemExit("the sort could not be compiled here; its warning says why")
        draws = torch.rand(NUM_SETS, count, generator=generator, device=device)
        sets = list((draws * num_keys).to(torch.int32))
        expected, order = torch.sort(sets[0], stable=True)
        found = sort(own, sets[0])
        if not (torch.equal(found[0], expected) and torch.equal(found[1], order.int())):
            raise SystemExit(f"{count:,} ids of {num_keys:,} keys are sorted wrongly")
        ours = median_ms([partial(sort, own, keys) for keys in sets])
        peer = median_ms([partial(torch.sort, keys, stable=True) for keys in sets])
        name = f"{count:,} ids of {num_keys:,} keys: sort"
        rows.append(beside_peer(name, ours, "torch.sort", peer))
        print(rows[-1], flush=True)
    notes = "Both with the allocation of their results; ours also clears its words."
    write_results("radix_sort", rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
