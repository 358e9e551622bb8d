"""Time the trie at 1M items: build, masks for 512 beams at every level, restrictions, memory.

Two shapes, each with codes drawn evenly and with codes drawn towards 0 (the cube of a uniform
number), which gives full nodes with hundreds of children as real catalogues have. With ``--device
cuda`` the masks are timed as calls and as replays of a CUDA graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from recsys.data.item_mask import ItemMask
from recsys.semantic_ids.trie import Restriction, Trie
from tests.benchmarks.harness import Row, command_line, device_name, timed, write_results

NUM_BEAMS = 512
ALLOWED_SHARE = 0.1
REPEATS = 300
STATE_SETS = 4


def draw_ids(num_items: int, level_sizes: tuple[int, ...], power: int) -> Tensor:
    """Draw unique codes [N, L], denser towards 0 for a larger power, in random order."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.empty(0, len(level_sizes), dtype=torch.int32)
    while len(codes) < num_items:
        drawn = [torch.rand(2 * num_items, generator=generator) ** power * k for k in level_sizes]
        codes = torch.cat([codes, torch.stack(drawn, 1).int()]).unique(dim=0)
    return codes[torch.randperm(len(codes), generator=generator)[:num_items]]


def median_seconds(calls: list[Callable[[], object]], device: torch.device) -> float:
    """Time calls in turn; on a GPU with events around each."""
    for call in calls * 10:
        call()
    times = []
    for index in range(REPEATS):
        call = calls[index % len(calls)]
        if device.type == "cpu":
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


def replays(call: Callable[[], object], copies: int = 20) -> Callable[[], object]:
    """Capture a call several times in one graph, so that the gap before it does not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # it reads what is being made there
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    return graph.replay


def mask_rows(
    trie: Trie, codes: Tensor, label: str, restriction: Restriction | None, goal: float
) -> list[Row]:
    """Time the mask of each level for the beams of real prefixes."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    kind = "" if restriction is None else f", {ALLOWED_SHARE:.0%} of items allowed"
    limit = f"<= {goal:g} us"
    for level in range(trie.num_levels):
        picks = [
            torch.randint(len(codes), (NUM_BEAMS,), generator=generator) for _ in range(STATE_SETS)
        ]
        states = [trie.walk(codes[pick, :level].to(trie.device)) for pick in picks]
        calls = [partial(trie.mask, some, level, restriction) for some in states]
        name = f"{label}: mask of level {level}, {NUM_BEAMS} beams{kind}"
        if trie.device.type == "cuda":
            single = median_seconds(calls, trie.device) * 1e6
            rows.append(Row(name=f"{name}, called from Python", value=single, unit="us"))
            graphs = [replays(call) for call in calls]
            value = median_seconds(graphs, trie.device) * 1e6 / 20
            name += ", in a CUDA graph"
        else:
            value = median_seconds(calls, trie.device) * 1e6
        rows.append(Row(name=name, value=value, unit="us", goal=limit, at_most=goal))
    return rows


def rows_of(
    num_items: int, level_sizes: tuple[int, ...], power: int, device: torch.device
) -> list[Row]:
    codes = draw_ids(num_items, level_sizes, power)
    shape = f"{len(level_sizes)} x {level_sizes[0]}, {'even' if power == 1 else 'skewed'}"
    on_device = codes.to(device)
    Trie.build(on_device[:1000], level_sizes)
    build = timed(lambda: Trie.build(on_device, level_sizes))[0]
    trie = Trie.build(on_device, level_sizes)
    per_item = trie.num_bytes / num_items
    mask = ItemMask(np.random.default_rng(0).random(trie.num_item_rows) < ALLOWED_SHARE)
    restriction = trie.restrict([mask])
    allowed = mask.as_bool()[None].to(device)
    restrict = median_seconds([lambda: trie.restrict_rows(allowed)], device) * 1e3
    rows = [
        Row(name=f"{shape}: build", value=build, unit="s", at_most=5),
        Row(
            name=f"{shape}: memory", value=per_item, unit="bytes an item", goal="<= 64", at_most=64
        ),
        Row(name=f"{shape}: restrict by an item mask, once a request", value=restrict, unit="ms"),
    ]
    goal = 50.0 if device.type == "cuda" else 1000.0
    rows += mask_rows(trie, codes, shape, None, goal)
    return rows + mask_rows(trie, codes, shape, restriction, goal)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--num-items", type=int, default=1_000_000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    for level_sizes in [(256,) * 4, (1024,) * 3]:
        for power in (1, 3):
            rows += rows_of(arguments.num_items, level_sizes, power, device)
    on_gpu = device.type == "cuda"
    write_results(
        "trie_gpu" if on_gpu else "trie",
        rows,
        notes=(
            f"{arguments.num_items:,} items. Skewed codes are cubes of uniform numbers, so that "
            "nodes with as many children as codes occur. Median of "
            f"{REPEATS}; states of random items, {STATE_SETS} sets in turn."
        ),
        device=torch.cuda.get_device_name() if on_gpu else device_name(),
    )


if __name__ == "__main__":
    main()
