"""Time requests of a constrained beam search: encoding, finding items, and the trie's part.

A generative model with weights as they were drawn, 4 levels of 256 codes. On a CPU: 2 layers of
width 128, 50 events, beam 50, one core, beside ``generate`` of transformers with a T5 of these
sizes if it is installed. With ``--device cuda``: 8 layers of width 1024 in bfloat16, 2048 places of
history, beam 200, called from Python and as a CUDA graph.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import ItemMask
from recsys.models.generative.config import GenerativeConfig
from recsys.models.generative.model import (
    BeamState,
    GenerativeContext,
    GenerativeInputs,
    GenerativeModel,
)
from recsys.models.item_tower import ItemCatalogue
from recsys.retrieval.beam_search import BeamSearch, CapturedSearch
from recsys.semantic_ids.trie import Restriction, Trie
from tests.benchmarks.harness import Row, command_line, device_name, median_seconds, write_results

LEVEL_SIZES = (256,) * 4
ALLOWED_SHARE = 0.1
T5_SPECIAL_TOKENS = 2


class TimedTrie(Trie):
    """Adds up the seconds spent in each of its calls that a search makes."""

    seconds: ClassVar[Counter[str]] = Counter()

    def mask(
        self,
        states: Tensor,
        level: int,
        restriction: Restriction | None = None,
        requests: Tensor | None = None,
    ) -> Tensor:
        begin = time.perf_counter()
        result = super().mask(states, level, restriction, requests)
        self.seconds["mask"] += time.perf_counter() - begin
        return result

    def step(self, states: Tensor, codes: Tensor, level: int) -> Tensor:
        begin = time.perf_counter()
        result = super().step(states, codes, level)
        self.seconds["step"] += time.perf_counter() - begin
        return result

    def item_rows(self, states: Tensor) -> Tensor:
        begin = time.perf_counter()
        result = super().item_rows(states)
        self.seconds["step"] += time.perf_counter() - begin
        return result


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is searched with."""

    dim: int
    num_heads: int
    num_layers: int
    num_events: int
    beam_width: int
    repeats: int
    dtype: torch.dtype


ON_CPU = Shape(
    dim=128,
    num_heads=4,
    num_layers=2,
    num_events=50,
    beam_width=50,
    repeats=200,
    dtype=torch.float32,
)
ON_GPU = Shape(
    dim=1024,
    num_heads=16,
    num_layers=8,
    num_events=2047,
    beam_width=200,
    repeats=30,
    dtype=torch.bfloat16,
)


Searches = tuple[GenerativeModel, BeamSearch[GenerativeContext, BeamState]]


class Parts(NamedTuple):
    """Median milliseconds of a request's parts."""

    encode: float
    search: float
    mask: float
    step: float

    @property
    def total(self) -> float:
        return self.encode + self.search


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    return median_seconds(call, repeats, warmup=5) * 1e3


def draw_ids(num_items: int, level_sizes: tuple[int, ...], power: int) -> Tensor:
    """Draw unique codes [N, L], denser towards 0 for a larger power, in random order."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.empty(0, len(level_sizes), dtype=torch.int32)
    while len(codes) < num_items:
        drawn = [torch.rand(2 * num_items, generator=generator) ** power * k for k in level_sizes]
        codes = torch.cat([codes, torch.stack(drawn, 1).int()]).unique(dim=0)
    return codes[torch.randperm(len(codes), generator=generator)[:num_items]]


def build(shape: Shape, trie: Trie, codes: Tensor) -> Searches:
    config = GenerativeConfig(
        items="codes",
        dense_weight=0.0,
        embedding_dim=shape.dim,
        hidden_dim=4 * shape.dim,
        num_heads=shape.num_heads,
        num_layers=shape.num_layers,
        max_length=shape.num_events,
        backend="torch",
    )
    inputs = GenerativeInputs(
        num_item_rows=trie.num_item_rows, level_sizes=LEVEL_SIZES, semantic_ids="drawn"
    )
    of_rows = functional.pad(codes.long(), (0, 0, 1, 0), value=-1)  # the first item has row 1
    torch.manual_seed(0)
    model = GenerativeModel(config, inputs, of_rows, ItemCatalogue.empty(len(of_rows)))
    model = model.eval().to(trie.device, shape.dtype)
    search = BeamSearch(
        model.decode_step, trie, beam_width=shape.beam_width, semantic_ids_version=None
    )
    return model, search


def draw_queries(shape: Shape, batch_size: int, trie: Trie) -> JaggedBatch:
    generator = torch.Generator().manual_seed(0)
    size = (batch_size * shape.num_events,)
    rows = torch.randint(1, trie.num_item_rows, size, generator=generator)
    offsets = torch.arange(batch_size + 1) * shape.num_events
    return JaggedBatch({"history": Jagged(rows, offsets)}).to(trie.device)


def timed_parts(
    shape: Shape, trie: TimedTrie, search: Searches, masks: list[ItemMask] | None
) -> Parts:
    """Time requests on a CPU."""
    model, beam_search = search
    queries = draw_queries(shape, 1 if masks is None else len(masks), trie)
    times = []
    for _ in range(shape.repeats + 5):
        trie.seconds.clear()
        begin = time.perf_counter()
        context = model.context(queries)
        encoded = time.perf_counter()
        beam_search.search(context, shape.beam_width, masks)
        end = time.perf_counter()
        times.append((encoded - begin, end - encoded, trie.seconds["mask"], trie.seconds["step"]))
    return Parts(*(statistics.median(part) * 1e3 for part in zip(*times[5:], strict=True)))


def part_rows(name: str, parts: Parts) -> list[Row]:
    share, all_calls = parts.mask / parts.total, (parts.mask + parts.step) / parts.total
    return [
        Row(
            name=f"{name}: a request, encoded and searched",
            value=parts.total,
            unit="ms",
            at_most=50,
        ),
        Row(name=f"{name}: of it the search", value=parts.search, unit="ms"),
        Row(
            name=f"{name}: share of the trie's masks",
            value=100 * share,
            unit="%",
            at_most=2,
        ),
        Row(name=f"{name}: share of all calls of the trie", value=100 * all_calls, unit="%"),
    ]


def t5_milliseconds(shape: Shape, codes: Tensor) -> float:
    """Time what is commonly used: ``generate`` with allowed tokens by a function of the prefix."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=sum(LEVEL_SIZES) + T5_SPECIAL_TOKENS,
        d_model=shape.dim,
        d_kv=shape.dim // shape.num_heads,
        d_ff=4 * shape.dim,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = T5ForConditionalGeneration(config).eval()
    offsets = torch.arange(len(LEVEL_SIZES)) * LEVEL_SIZES[0] + T5_SPECIAL_TOKENS
    following: dict[tuple[int, ...], set[int]] = {}
    for tokens in (codes + offsets).tolist():
        for level, token in enumerate(tokens):
            following.setdefault(tuple(tokens[:level]), set()).add(token)
    allowed = {prefix: sorted(tokens) for prefix, tokens in following.items()}
    events = torch.randn(1, shape.num_events, shape.dim)

    def generate() -> Tensor:
        return model.generate(
            inputs_embeds=events,
            attention_mask=torch.ones(1, shape.num_events, dtype=torch.int64),
            num_beams=shape.beam_width,
            num_return_sequences=shape.beam_width,
            min_new_tokens=len(LEVEL_SIZES),
            max_new_tokens=len(LEVEL_SIZES),
            prefix_allowed_tokens_fn=lambda _, prefix: allowed.get(tuple(prefix[1:].tolist()), [1]),
        )

    return milliseconds(generate, 20)


@torch.no_grad()
def cpu_rows(shape: Shape, sizes: list[int]) -> list[Row]:
    rows: list[Row] = []
    for num_items in sizes:
        codes = draw_ids(num_items, LEVEL_SIZES, 1)
        trie = TimedTrie.build(codes, LEVEL_SIZES)
        generator = np.random.default_rng(0)
        masks = [ItemMask(generator.random(trie.num_item_rows) < ALLOWED_SHARE) for _ in range(16)]
        name = f"{num_items:,} items, decoder alone behind {shape.num_events} events"
        searches = build(shape, trie, codes)
        parts = timed_parts(shape, trie, searches, None)
        rows += part_rows(name, parts)
        if num_items == sizes[0] and find_spec("transformers") is not None:
            peer = t5_milliseconds(shape, codes)
            label = f"T5, generate of transformers: {peer:.3g} ms"
            rows[0] = replace(rows[0], peer=label, ratio=peer / parts.total)
        name = f"{name}, {ALLOWED_SHARE:.0%} of items allowed"
        rows += part_rows(name, timed_parts(shape, trie, searches, masks[:1]))
        restrict = milliseconds(partial(trie.restrict, masks[:1]), 30)
        rows.append(Row(name=f"{name}: of it the restriction", value=restrict, unit="ms"))
        batch = timed_parts(shape, trie, searches, masks).total / len(masks)
        name = f"{name}, a request in a batch of {len(masks)}"
        rows.append(Row(name=name, value=batch, unit="ms"))
    return rows


@torch.no_grad()
def gpu_rows(
    shape: Shape, trie: Trie, codes: Tensor, search_with: tuple[str, Searches], batch_size: int
) -> list[Row]:
    (name, (model, search)), goal = search_with, {1: 8.0, 16: 80.0}[batch_size]
    queries = draw_queries(shape, batch_size, trie)
    context, k, repeats = model.context(queries), shape.beam_width, shape.repeats
    encode = milliseconds(lambda: model.context(queries), repeats)
    eager = milliseconds(lambda: search.search(context, k), repeats)
    own = GenerativeContext(*(part.clone() for part in context))
    captured = CapturedSearch(search, own, k)
    allowed = torch.ones(batch_size, trie.num_item_rows, dtype=torch.bool, device=trie.device)
    graph = milliseconds(lambda: captured.lists(context, allowed), repeats)
    masks = 0.0
    for level in range(1, trie.num_levels):
        states = trie.walk(codes[: batch_size * k, :level].to(trie.device))
        calls = CapturedCalls(partial(trie.mask, states, level), 20)
        masks += milliseconds(calls.replay, repeats) / 20
    name, limit, total = f"{name}, batch {batch_size}", f"<= {goal:g} ms", encode + graph
    return [
        Row(name=f"{name}: context encoded", value=encode, unit="ms"),
        Row(name=f"{name}: search called from Python", value=eager, unit="ms"),
        Row(name=f"{name}: search as a graph", value=graph, unit="ms", goal=limit, at_most=goal),
        Row(name=f"{name}: encoding and graph", value=total, unit="ms", goal=limit, at_most=goal),
        Row(
            name=f"{name}: share of the trie's masks in the search",
            value=100 * masks / graph,
            unit="%",
            goal="<= 2%",
            met=masks / graph <= 0.02,
        ),
    ]


class CapturedCalls:
    """Copies of a call as one CUDA graph."""

    def __init__(self, call: Callable[[], object], copies: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # it reads what is being made there
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = [call() for _ in range(copies)]

    def replay(self) -> None:
        self.graph.replay()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--num-items", type=int, nargs="+", default=[12_101, 1_000_000], help="catalogue sizes"
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    notes = (
        "Weights as drawn, semantic IDs drawn evenly. Medians. Lists have as many items as beams. "
        "The trie's share is of the whole request. "
    )
    if device.type == "cuda":
        codes = draw_ids(arguments.num_items[-1], LEVEL_SIZES, 1)
        trie = Trie.build(codes.to(device), LEVEL_SIZES)
        notes += (
            f"{arguments.num_items[-1]:,} items, {ON_GPU.num_layers} layers of width {ON_GPU.dim} "
            f"in bfloat16, {ON_GPU.num_events + 1} places of history, beam {ON_GPU.beam_width}. "
            "A search ends with its lists checked for NaN, so it waits for the device."
        )
        rows, gpu = [], torch.cuda.get_device_name()
        searches = build(ON_GPU, trie, codes)
        for batch_size in (1, 16):
            rows += gpu_rows(ON_GPU, trie, codes, ("decoder alone", searches), batch_size)
            write_results("beam_search_gpu", rows, notes=notes, device=gpu)
        return
    torch.set_num_threads(1)
    rows = cpu_rows(ON_CPU, arguments.num_items)
    notes += (
        f"{ON_CPU.num_layers} layers of width {ON_CPU.dim}, {ON_CPU.num_heads} heads, beam "
        f"{ON_CPU.beam_width}, one request on one core unless named otherwise. T5's beams hold "
        "the same levels in one vocabulary; its encoder and decoder have these sizes."
    )
    write_results("beam_search", rows, notes=notes, device=f"{device_name()}, one used")


if __name__ == "__main__":
    main()
