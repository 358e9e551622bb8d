"""Three shops with shared users: one base and three adapters beside three models and one shared.

Beauty, Sports and Toys of Amazon have one id for each user. N@10 among a shop's items, history left
out, of: a model of each shop's events alone (own); one model of all events (shared), which is the
base; the base fine-tuned whole on each shop (full); the base and an adapter of each shop (adapter).
Of validation 2,000 even users pick each best step; odd ones are the number on validation,
and the gate's verdict. With ``--test`` also the test events of all users, which is a look for the
ledger.

    python -m examples.data three-shops runs/three/data     # or: --whole, of all users
    python -m tests.benchmarks.adapters.benchmark_three_shops --save runs/three.npz [--whole]
    python -m tests.benchmarks.adapters.benchmark_three_shops --arrays runs/three.npz --device cuda

The first command reads the registry's data; the second needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut, Sequences
from recsys.data.windows import BatchOrder, domain_window_batch, domain_windows, training_windows
from recsys.evaluation.paired import paired
from recsys.evaluation.ranking import RankingConfig, evaluate_ranking
from recsys.fitting.queries import ModelInputs
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted import AdaptedRetriever, adapted_layers
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import ScheduleConfig, TrainingConfig
from tests.benchmarks.harness import Row, command_line, device_name, write_results

SHOPS = ("beauty", "sports", "toys")
KINDS = ("own", "shared", "full", "adapter")
PASSES = {"own": 16.0, "shared": 16.0, "full": 6.0, "adapter": 10.0}
RATES = {"own": 1e-3, "shared": 1e-3, "full": 3e-4, "adapter": 1e-3}
RANK = 8
METRIC = "ndcg@10"
QUERIES = 512
PICKING_USERS = 2_000
"""Users of a shop that pick the best step, at most."""
Gains = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shops:
    """One log of all shops, and the shop of each item."""

    inputs: ModelInputs
    shop_of_item: NDArray[np.int64]
    """Place in ``SHOPS`` of each item row, [N]; -1 for row 0."""

    @classmethod
    def load(cls, path: Path) -> Shops:
        """Read the arrays that ``prepare`` wrote."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        wide = {
            name: arrays[name].astype(np.int64)
            for name in ("item_rows", "offsets", "train_end", "validation_end")
        }
        content = torch.from_numpy(arrays["content"].astype(np.float32))
        no_categories = torch.zeros(len(content) + 1, dtype=torch.int64)
        sizes = FeatureSizes(
            num_item_rows=len(content), content_dim=content.shape[1], num_categories=0
        )
        catalogue = ItemCatalogue(content, Jagged(torch.zeros(0, dtype=torch.int64), no_categories))
        inputs = ModelInputs(sequences=Sequences(**wide), catalogue=catalogue, sizes=sizes)
        return cls(inputs=inputs, shop_of_item=arrays["shop_of_item"].astype(np.int64))

    def own(self, shop: int | None) -> NDArray[np.bool_]:
        """Mark a shop's item rows, or those of all shops, [N]."""
        marked: NDArray[np.bool_] = (
            self.shop_of_item >= 0 if shop is None else self.shop_of_item == shop
        )
        return marked

    def alone(self, shop: int) -> Shops:
        """Keep one shop's events; each user's held-out events stay held out."""
        whole = self.inputs.sequences
        kept = self.own(shop)[whole.item_rows]
        before = np.append(0, np.cumsum(kept))
        ends = {name: before[getattr(whole, name)] for name in ("train_end", "validation_end")}
        part = Sequences(item_rows=whole.item_rows[kept], offsets=before[whole.offsets], **ends)
        return replace(self, inputs=replace(self.inputs, sequences=part))


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Held-out queries whose first target is of one shop."""

    shops: Shops
    shop: int
    held_out: HeldOut
    device: str

    @classmethod
    def of(cls, shops: Shops, shop: int, device: str, split: str, half: int | None) -> Judge:
        """Collect the users of a split: of one half, or all."""
        sequences = shops.inputs.sequences
        whole = HeldOut.of(sequences, split)  # type: ignore[arg-type]
        first = whole.targets.values.numpy()[whole.targets.offsets[:-1].numpy()]
        inside = shops.own(shop)[first]
        if half is not None:
            inside &= sequences.users_of(whole.positions) % 2 == half
        held_out = whole.take(np.flatnonzero(inside))
        # Enough users to pick a step by.
        held_out = held_out.sample(PICKING_USERS, 0) if half == 0 else held_out
        return cls(shops=shops, shop=shop, held_out=held_out, device=device)

    def gains(self, score: Callable[[Any], Tensor]) -> Gains:
        """Measure N@10 of each user among the shop's items, [U]."""
        elsewhere = ~torch.from_numpy(self.shops.own(self.shop)).to(self.device)

        def ranked(batch: Any) -> Tensor:
            return score(batch.to(self.device)).masked_fill(elsewhere, -torch.inf)

        positions = self.held_out.positions
        batches = (
            self.shops.inputs.queries(positions[start : start + QUERIES], max_history=50)
            for start in range(0, len(positions), QUERIES)
        )
        found = evaluate_ranking(
            ranked,
            batches,
            self.held_out.targets,
            RankingConfig(ks=(10,)),
            exclude=self.held_out.seen,
        )
        return np.asarray(found.per_user(METRIC), np.float64)


def new_model(shops: Shops, width: int, seed: int, device: str) -> SequenceModel:
    """Build an untrained sequence model."""
    torch.manual_seed(seed)
    config = SequenceConfig(embedding_dim=width)
    inputs = shops.inputs
    counts = inputs.item_counts("train")
    return SequenceModel(config, inputs.sizes, inputs.catalogue, counts).to(device)


def fit(
    model: SequenceModel,
    trained: nn.Module,
    shops: Shops,
    shop: int | None,
    kind: str,
    seed: int,
    judges: list[Judge],
) -> None:
    """Train on the labels of a shop, or of all, to the best step of the picking users."""
    own, sequences, device = shops.own(shop), shops.inputs.sequences, judges[0].device
    windows = training_windows(sequences, "train", model.config.max_length)
    windows = domain_windows(sequences, windows, own)
    config = TrainingConfig(
        batch_size=256 if kind in ("own", "shared") else 128,
        max_epochs=PASSES[kind],
        schedule=ScheduleConfig(learning_rate=RATES[kind]),
        patience=3,
    )
    order = BatchOrder(len(windows), min(config.batch_size, len(windows)), seed)
    candidates = None if shop is None else torch.from_numpy(np.flatnonzero(own)).to(device)

    def loss_at(step: int) -> Tensor:
        chosen = order.indices(step)
        batch = domain_window_batch(sequences, windows.starts[chosen], windows.ends[chosen], own)
        return model.loss(batch.to(device), candidates)

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        return {METRIC: float(np.mean([one.gains(model.score).mean() for one in judges]))}

    steps = replace(config.for_examples(len(windows)), metric=METRIC)
    train(trained, loss_at, adamw(trained, config.optimizer), steps, evaluate=evaluate)
    model.eval()


def new_adapter(model: SequenceModel, shops: Shops, shop: int, seed: int) -> LoraAdapter:
    """Make an adapter of the query side, of content and of the shop's id vectors."""
    torch.manual_seed(seed)
    rows = torch.from_numpy(np.flatnonzero(shops.own(shop)))
    targets = adapted_layers(model)
    config = LoraConfig(
        targets=targets, tables=("item",), rank=RANK, alpha=16.0, dropout=0.0, max_share=0.1
    )
    return LoraAdapter(model, config, rows={"item": rows})


def one_seed(shops: Shops, seed: int, width: int, device: str, *, test: bool) -> dict[str, Any]:
    """Train all four variants of each shop; return N@10 of each user by shop and split."""
    picks = [Judge.of(shops, shop, device, "validation", 0) for shop in range(len(SHOPS))]
    splits: dict[str, int | None] = {"validation": 1} | ({"test": None} if test else {})
    found: dict[str, Any] = {}

    def note(kind: str, shop: int, data: Shops, score: Callable[[Any], Tensor]) -> None:
        for split, half in splits.items():
            gains = Judge.of(data, shop, device, split, half).gains(score)
            found.setdefault(f"{SHOPS[shop]} {split}", {})[kind] = gains

    begin = time.perf_counter()
    base = new_model(shops, width, seed, device)
    fit(base, base, shops, None, "shared", seed, picks)
    for shop, name in enumerate(SHOPS):
        note("shared", shop, shops, base.score)
        alone = shops.alone(shop)
        own = new_model(alone, width, seed, device)
        fit(own, own, alone, shop, "own", seed, [Judge.of(alone, shop, device, "validation", 0)])
        note("own", shop, alone, own.score)
        full = copy.deepcopy(base)
        fit(full, full, shops, shop, "full", seed, [picks[shop]])
        note("full", shop, shops, full.score)
        adapted = copy.deepcopy(base)
        adapter = new_adapter(adapted, shops, shop, seed).attach()
        fit(adapted, adapter, shops, shop, "adapter", seed, [picks[shop]])
        adapter.detach()
        retriever = AdaptedRetriever(adapted, {name: adapter})
        note("adapter", shop, shops, partial(retriever.score, domain=name))
        means = {kind: f"{one.mean():.4f}" for kind, one in found[f"{name} validation"].items()}
        print(f"seed {seed}, {name}, {time.perf_counter() - begin:.0f} s: {means}", flush=True)
    return found


def prepare(path: Path, *, whole: bool) -> None:
    """Write the arrays of the joined log, by the example's run up to the item vectors."""
    import polars as pl

    from examples.data import joined_shops, three_shops
    from pipelines.engine.runner import pick_stages, run_stages
    from pipelines.inputs.tensors import read_inputs
    from pipelines.presets.resolve import resolve
    from pipelines.stages.list import STAGES

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, table in (joined_shops() if whole else three_shops()).items():
            table.write_parquet(folder / f"{name}.parquet")
        places = [f'data.{one}="{folder / one}.parquet"' for one in ("events", "items")]
        places.append('content.encoder="hash"')
        toml = Path("examples") / "three-shops.toml"
        config = resolve(toml, assignments=places, workspace=folder / "run")
        stages = pick_stages(STAGES, ("build_features", "enrich_items", "embed_items"), None)
        run_stages(stages, config, show_progress=True)
        features = config.workspace / "build_features"
        inputs = read_inputs(features, config.workspace / "embed_items")
        items = pl.read_parquet(features / "items.parquet").sort("item_row")
    shop_of_item = np.full(inputs.sizes.num_item_rows, -1, np.int8)
    shop_of_item[items["item_row"].to_numpy()] = [SHOPS.index(one) for one in items["domain"]]
    sequences = inputs.sequences
    names = ("item_rows", "offsets", "train_end", "validation_end")
    arrays = {name: np.asarray(getattr(sequences, name), np.int32) for name in names}
    content = inputs.catalogue.content.numpy().astype(np.float16)
    np.savez_compressed(path, content=content, shop_of_item=shop_of_item, **arrays)


def rows_of(seeds: list[dict[str, Any]]) -> list[Row]:
    """Lay out the mean over seeds of each variant, and the adapter against the others."""
    rows = []
    for place in seeds[0]:
        by_kind = {kind: np.array([one[place][kind] for one in seeds]) for kind in KINDS}  # [S, U]
        for kind, gains in by_kind.items():
            of_seeds = gains.mean(1)
            spread = f" ({', '.join(f'{one:.4f}' for one in of_seeds)})"
            rows.append(Row(name=f"{place}: {kind}{spread}", value=gains.mean(), unit=METRIC))
        for other in KINDS[:-1]:
            gap = paired(by_kind[other].mean(0), by_kind["adapter"].mean(0))
            rows.append(
                Row(
                    name=f"{place}: adapter above {other} ({gap.low:+.4f} to {gap.high:+.4f})",
                    value=gap.difference,
                    unit=METRIC,
                    goal="above 0 by the interval over users" if other == "shared" else None,
                    met=gap.low > 0 if other == "shared" else None,
                )
            )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--save", type=Path, help="prepare the arrays and end")
    parser.add_argument("--whole", action="store_true", help="all users, not the example's")
    parser.add_argument("--arrays", type=Path, help="arrays that --save wrote")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--test", action="store_true", help="also look at the test split")
    parser.add_argument("--raw", type=Path, nargs="+", help="files of users' numbers, one a seed")
    parser.add_argument("--name", default="three_shops", help="of the results")
    chosen = parser.parse_args()
    if chosen.save:
        prepare(chosen.save, whole=chosen.whole)
        return
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else device_name()
    if chosen.arrays:
        shops = Shops.load(chosen.arrays)
        for seed, path in zip(chosen.seeds, chosen.raw, strict=True):
            found = one_seed(shops, seed, chosen.width, chosen.device, test=chosen.test)
            flat = {
                f"{place} {kind}": gains
                for place, by in found.items()
                for kind, gains in by.items()
            }
            np.savez_compressed(path, device=np.array(device), **flat)
        return
    seeds = []
    for path in chosen.raw:
        with np.load(path, allow_pickle=False) as file:
            device = str(file["device"])
            names = [name.rpartition(" ") for name in file.files if name != "device"]
            found = {}
            for place, _, kind in names:
                found.setdefault(place, {})[kind] = file[f"{place} {kind}"]
        seeds.append(found)
    notes = (
        f"{len(seeds)} seed(s), sequence model of width {chosen.width}; passes {PASSES}, "
        f"rates {RATES}, rank {RANK}. Intervals are over users, of the mean of the seeds. The "
        "base of full and adapter is shared; all are ranked among the shop's items."
    )
    write_results(chosen.name, rows_of(seeds), notes=notes, device=device)


if __name__ == "__main__":
    main()
