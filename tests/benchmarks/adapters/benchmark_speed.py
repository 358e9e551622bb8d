"""Time a batch of three domains in one forward of a sequence model, beside its alternatives.

Beside the base alone (goal: at most 10% slower) and beside three calls (goal: 3 times their
throughput), one a domain, in the ways there are to make them:

- a third of the rows each through weights that each domain's adapter was merged into beforehand, a
  model a domain, the batch split and the outputs left unordered: the least that three
  calls can cost;
- the same from requests to outputs: both ways begin with histories as lists on the host, make
  batches of them, and end with the outputs in the requests' order;
- a third of the rows each through the one model, each adapter attached in turn, as PEFT switches;
- a third of the rows each through the one model, each adapter merged in turn and taken out again;
- the whole batch through each adapter's merged weights.

On a GPU all is timed twice, called from Python on batches that lie there, and as CUDA graphs with
batches from the host, which a replay copies; base, mixed batch and three calls. Rounds of
all variants alternate, the median counts. Outputs are checked first; where they differ nothing is
timed.

    python -m tests.benchmarks.adapters.benchmark_speed --device cpu
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted.model import AdaptedRetriever, adapted_layers
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from tests.benchmarks.adapters.captured_queries import CapturedQueries
from tests.benchmarks.harness import Row, alternating_ms, command_line, device_name, write_results

DOMAINS = ("beauty", "sports", "toys")
NUM_ITEMS = 42_382
"""Of Amazon's Beauty, Sports and Toys together."""


def model_on(device: str, blocks: int) -> SequenceModel:
    torch.manual_seed(0)
    config = SequenceConfig(num_blocks=blocks, num_heads=2, backend="torch")
    inputs = FeatureSizes(num_item_rows=NUM_ITEMS + 1)
    counts = torch.ones(NUM_ITEMS + 1, dtype=torch.int64)
    model = SequenceModel(config, inputs, ItemCatalogue.empty(NUM_ITEMS + 1), counts)
    return model.to(device).eval()


def adapters_of(model: SequenceModel, rank: int) -> dict[str, LoraAdapter]:
    made = {}
    for domain in DOMAINS:
        adapter = LoraAdapter(model, LoraConfig(targets=adapted_layers(model), rank=rank))
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.normal_(std=0.05)
        made[domain] = adapter.eval()
    return made


def batch_of(size: int, events: int, device: str) -> JaggedBatch:
    values = torch.randint(1, NUM_ITEMS + 1, (size * events,))
    offsets = torch.arange(size + 1) * events
    return JaggedBatch({"history": Jagged(values, offsets)}).to(device)


def part_of(batch: JaggedBatch, rows: Tensor) -> JaggedBatch:
    return JaggedBatch({"history": batch["history"].take(rows)})


def batch_from(lists: list[list[int]], device: str) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(lists)}).to(device)


class Variants:
    """Every way of answering one mixed batch."""

    name = "called from Python"
    adds = ("three_attached", "three_whole")

    def __init__(self, model: SequenceModel, rank: int, size: int, events: int) -> None:
        self.device = device = next(model.parameters()).device.type
        self.model = model
        self.batch = batch_of(size, events, self.batch_device(device))
        self.lists = self.batch["history"].values.view(size, events).tolist()
        self.domains = [DOMAINS[row % 3] for row in range(size)]
        self.four = [(DOMAINS[0], None, *DOMAINS[1:])[row % 4] for row in range(size)]
        self.rows = [torch.arange(place, size, 3, device=device) for place in range(3)]
        self.parts = [
            part_of(self.batch, rows.to(self.batch["history"].values.device)) for rows in self.rows
        ]
        self.adapters = adapters_of(model, rank)
        self.adapted = AdaptedRetriever(model, self.adapters)
        self.inputs = model.all_item_inputs()

    def batch_device(self, device: str) -> str:
        """Say where a batch lies before it is encoded."""
        return device

    def base(self) -> Tensor:
        return self.model.query_vectors(self.batch)

    def mixed(self) -> Tensor:
        return self.mixed_call(self.batch)

    def mixed_call(self, batch: JaggedBatch) -> Tensor:
        return self.adapted.query_vectors(batch, self.domains)

    def with_base(self) -> Tensor:
        """Every fourth query without an adapter; it keeps the base's bits."""
        return self.adapted.query_vectors(self.batch, self.four)

    def mixed_requests(self) -> Tensor:
        return self.mixed_call(batch_from(self.lists, self.batch_device(self.device)))

    def one_domain(self) -> Tensor:
        """The whole batch through one adapter, as a request is."""
        return self.adapted.query_vectors(self.batch, [DOMAINS[0]] * self.batch.batch_size)

    def base_scored(self) -> Tensor:
        return self.model.query_vectors(self.batch) @ self.adapted.item_vectors(None).T

    def mixed_scored(self) -> Tensor:
        return self.adapted.score(self.batch, self.domains)

    def call(self, place: int, part: JaggedBatch) -> Tensor:
        """One domain's rows through its merged weights."""
        return self.adapted.query_vectors(part, [DOMAINS[place]] * part.batch_size)

    def base_call(self, part: JaggedBatch) -> Tensor:
        """A third of the rows through the base's weights, whatever was merged into them."""
        return self.model.query_vectors(part)

    def three_calls(self) -> list[Tensor]:
        return [self.call(place, part) for place, part in enumerate(self.parts)]

    def three_requests(self) -> Tensor:
        parts = [
            self.call(place, batch_from(self.lists[place::3], self.batch_device(self.device)))
            for place in range(3)
        ]
        return self.joined(parts)

    def three_attached(self) -> list[Tensor]:
        parts = []
        for domain, part in zip(DOMAINS, self.parts, strict=True):
            self.adapters[domain].attach()
            self._keep_items()
            parts.append(self.model.query_vectors(part))
            self.adapters[domain].detach()
        self._keep_items()
        return parts

    def three_merges(self) -> list[Tensor]:
        parts = []
        for domain, part in zip(DOMAINS, self.parts, strict=True):
            self.adapters[domain].merge()
            self._keep_items()
            parts.append(self.base_call(part))
            self.adapters[domain].unmerge()
        self._keep_items()
        return parts

    def three_whole(self) -> list[Tensor]:
        whole = [self.call(place, self.batch) for place in range(3)]
        return [one[rows] for one, rows in zip(whole, self.rows, strict=True)]

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Put the outputs in the mixed batch's order."""
        out = parts[0].new_empty(self.batch.batch_size, parts[0].shape[1])
        for rows, part in zip(self.rows, parts, strict=True):
            out[rows] = part
        return out

    def _keep_items(self) -> None:
        # No item is corrected, so what was encoded of them holds.
        self.model._all_inputs = self.inputs


class Graphs(Variants):
    """The same as CUDA graphs, one of each size and kind of call."""

    name = "CUDA graphs"
    adds = ()

    def __init__(self, model: SequenceModel, rank: int, size: int, events: int) -> None:
        super().__init__(model, rank, size, events)
        whole = {"num_queries": size, "num_events": size * events}
        third = {key: -(-value // 3) for key, value in whole.items()}
        self._mixed = CapturedQueries(self.adapted, **whole)
        self._kept = CapturedQueries(self.adapted, keep_base=True, **whole)
        self._base = CapturedQueries(self.adapted, mixed=False, **whole)
        self._one = CapturedQueries(self.adapted, mixed=False, domain=DOMAINS[0], **whole)
        self._base_third = CapturedQueries(self.adapted, mixed=False, **third)
        self._thirds = [
            CapturedQueries(self.adapted, mixed=False, domain=domain, **third) for domain in DOMAINS
        ]

    def batch_device(self, device: str) -> str:
        return "cpu"

    def base(self) -> Tensor:
        return self._base.query_vectors(self.batch)

    def mixed_call(self, batch: JaggedBatch) -> Tensor:
        return self._mixed.query_vectors(batch, self.domains)

    def with_base(self) -> Tensor:
        return self._kept.query_vectors(self.batch, self.four)

    def one_domain(self) -> Tensor:
        return self._one.query_vectors(self.batch)

    def base_scored(self) -> Tensor:
        return self.base() @ self.adapted.item_vectors(None).T

    def mixed_scored(self) -> Tensor:
        return self.mixed() @ self.adapted.item_vectors(None).T

    def call(self, place: int, part: JaggedBatch) -> Tensor:
        return self._thirds[place].query_vectors(part)

    def base_call(self, part: JaggedBatch) -> Tensor:
        return self._base_third.query_vectors(part)


def median_ms(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Alternate the calls; on a CPU in processor time, into which other work does not count."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    return alternating_ms(calls, seconds=seconds, warmup=3, clock=clock)


def beside(name: str, value: float, base: float) -> Row:
    """Hold a time against the base's for the same work."""
    return Row(
        name=name,
        value=value,
        unit="ms",
        peer="base alone",
        ratio=base / value,
        goal="<= 10% slower",
        at_most=1.1 * base,
    )


THREE = {
    "three_calls": "three calls of thirds, a merged model a domain",
    "three_requests": "three calls of thirds, from requests to outputs",
    "three_merges": "three calls of thirds, each adapter merged and taken out",
    "three_attached": "three calls of thirds, each adapter attached and detached",
    "three_whole": "three calls of the whole batch",
}
BESIDE_BASE = {
    "mixed": "three domains in one forward",
    "with_base": "three domains and the base in one forward",
    "one_domain": "all of one domain",
}


def apart(name: str, found: Tensor, merged: Tensor) -> Row:
    value = float((found - merged).abs().max())
    return Row(
        name=f"{name} against merged weights, largest difference",
        value=value,
        goal="<= 1e-6",
        at_most=1e-06,
    )


def times_of(variants: Variants, three: list[str], seconds: float) -> dict[str, float]:
    """Time in groups whose members alternate: what one leaves in the caches the next one finds."""
    groups = [
        {name: getattr(variants, name) for name in ("base", *BESIDE_BASE)},
        {"mixed_again": variants.mixed}
        | {name: getattr(variants, name) for name in three if name != "three_requests"},
        {name: getattr(variants, name) for name in ("base_scored", "mixed_scored")},
        {name: getattr(variants, name) for name in ("mixed_requests", "three_requests")},
    ]
    found = [median_ms(group, seconds / len(groups)) for group in groups]
    return {name: ms for group in found for name, ms in group.items()}


def rows_of(variants: Variants, label: str, seconds: float) -> list[Row]:
    three = [*list(THREE)[:3], *variants.adds]
    mixed = variants.mixed()
    for name in three:
        found = getattr(variants, name)()
        joined = found if isinstance(found, Tensor) else variants.joined(found)
        torch.testing.assert_close(mixed, joined, rtol=0, atol=1e-5)
    ms = times_of(variants, three, seconds)
    merged = variants.joined(variants.three_merges())
    rows = [apart(f"{label}: one forward", mixed, merged)]
    if variants.device == "cpu":
        # Where one forward reads merged weights itself.
        attached = variants.joined(variants.three_attached())
        rows.append(apart(f"{label}: adapters attached", attached, merged))
    rows += [
        Row(name=f"{label}: base alone", value=ms["base"], unit="ms"),
        *(beside(f"{label}: {text}", ms[name], ms["base"]) for name, text in BESIDE_BASE.items()),
        beside(f"{label}: three domains, every item scored", ms["mixed_scored"], ms["base_scored"]),
    ]
    for name in three:
        peer = "mixed_requests" if name == "three_requests" else "mixed_again"
        ratio = ms[name] / ms[peer]
        rows.append(
            Row(
                name=f"{label}: {THREE[name]}",
                value=ms[name],
                unit="ms",
                peer=f"one forward, {ms[peer]:.4g} ms",
                ratio=ratio,
                min_ratio=3,
            )
        )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--events", type=int, default=20, help="of each history")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 48, 384])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    device = device_name() if chosen.device == "cpu" else torch.cuda.get_device_name()
    model = model_on(chosen.device, chosen.blocks)
    rows: list[Row] = []
    with torch.inference_mode():
        for size in chosen.sizes:
            for kind in (Variants, Graphs) if chosen.device == "cuda" else (Variants,):
                variants = kind(model, chosen.rank, size, chosen.events)
                label = (
                    f"{size} queries, {kind.name}" if chosen.device == "cuda" else f"{size} queries"
                )
                rows += rows_of(variants, label, chosen.seconds)
                variants.adapted.bank.remove()
    share = variants.adapters[DOMAINS[0]].share
    rows.append(Row(name="an adapter's parameters, of the base's", value=share, at_most=0.05))
    notes = (
        f"Sequence model of {chosen.blocks} attention blocks of width 128 over {NUM_ITEMS:,} "
        f"items, rank {chosen.rank}, histories of {chosen.events} events, "
        f"{chosen.threads} thread(s). Times are of `query_vectors`, where no scoring is named. "
        "Three calls of a third of the rows each do the same arithmetic as one forward, so they "
        "take up to three times as long only where a call costs more than its rows."
    )
    write_results(f"speed_{chosen.device}", rows, notes=notes, device=device)


if __name__ == "__main__":
    main()
