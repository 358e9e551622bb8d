"""Our ranker on impressions beside DIN and DCNv2 of FuxiCTR, split by time.

The lists of a part of MIND: the earliest 60% of the requests train, the next 20% pick the pass and
calibrate, the last 20% are measured. Every model is trained with and without the features of
``impressions.py``. AUC of all candidates, AUC within each user weighted by candidates (gAUC), log
loss and calibration error (of ten bins); intervals are of a bootstrap over users.

    python -m tests.benchmarks.ranker.benchmark_impressions --data FOLDER --save shown.npz
    python -m tests.benchmarks.ranker.benchmark_impressions --arrays shown.npz --out ours.npz
    PYTHON -m tests.benchmarks.ranker.fuxictr_peers shown.npz peers.npz --seeds 0 1 2 3 4
    python -m tests.benchmarks.ranker.benchmark_impressions --arrays shown.npz \\
        --logits ours.npz peers.npz

PYTHON is another, with torch and fuxictr 2.3.10.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.windows import BatchOrder
from recsys.layers.calibrator import Calibrator
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Correction, RankingBatch
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, ScheduleConfig, TrainingConfig
from recsys.training.ranker_fit import minimise
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.ranker.impressions import (
    FEATURES,
    Floats,
    Rows,
    Shown,
    auc,
    calibration_error,
    grouped_auc,
    log_loss,
    read,
)

BASE = "odds.before"
CONFIG = RankerConfig(
    embedding_dim=16, key_dim=16, hidden_dim=32, head_dim=16, dropout=0.2, id_dropout=0.1
)
OURS = "ranker, with features"
LINE_L2 = 20.0
METRIC = "auc_and_gauc"
NUM_DRAWS = 500
TRAINING = TrainingConfig(
    batch_size=128,
    max_epochs=10.0,
    patience=3,
    optimizer=AdamWConfig(weight_decay=0.1),
    schedule=ScheduleConfig(learning_rate=1e-3),
)


def batch_of(shown: Shown, requests: Rows, *, dense: bool) -> tuple[RankingBatch, Tensor]:
    """Build the whole lists of some requests, and their labels [M, 1]."""

    def ragged(parts: list[Rows]) -> Jagged:
        ends = np.append(0, np.cumsum([len(one) for one in parts]))
        return Jagged(torch.from_numpy(np.concatenate(parts)), torch.from_numpy(ends))

    bounds = [(shown.offsets[one], shown.offsets[one + 1]) for one in requests]
    places = shown.candidates(requests)
    queries = {
        "history": ragged([shown.histories[one] for one in requests]),
        "context.hour": Jagged.one_each(torch.from_numpy(shown.hours[requests])),
    }
    batch = RankingBatch(
        JaggedBatch(queries),
        ragged([shown.items[first:last] for first, last in bounds]),
        torch.from_numpy(shown.features[places]).float() if dense else None,
    )
    return batch, torch.from_numpy(shown.clicked[places]).float()[:, None]


def fit_line(correction: Correction, shown: Shown, places: Rows) -> None:
    """Fit the linear correction to all candidates; the network then learns the rest.

    The base, itself a feature, is counted as the line's.
    """
    features = torch.from_numpy(shown.features[places]).float()
    base, clicked = correction.base(features)[:, 0], torch.from_numpy(shown.clicked[places]).float()
    features = correction.standardised(features)
    weight = torch.zeros(features.shape[1] + 1, requires_grad=True)

    def loss() -> Tensor:
        logits = base + features @ weight[:-1] + weight[-1]
        penalty = LINE_L2 / len(places) / 2 * weight[:-1].square().sum()
        return functional.binary_cross_entropy_with_logits(logits, clicked) + penalty

    minimise(loss, [weight], max_iter=100)
    with torch.no_grad():
        correction.weight[0], correction.bias[0] = weight[:-1], weight[-1]


def fit_ours(
    shown: Shown, seed: int, *, dense: bool, config: RankerConfig = CONFIG, device: str = "cpu"
) -> Ranker:
    """Train on whole lists, to the pass with the best sum of AUC and gAUC on validation."""
    chosen = shown.requests("train")
    places = shown.candidates(chosen)
    inputs = RankerInputs(
        num_item_rows=shown.num_items,
        content_dim=0,
        num_categories=0,
        context_features={"hour": 25},
        candidate_dense=FEATURES if dense else (),
        base_feature=BASE if dense else "",
    )
    torch.manual_seed(seed)
    counts = np.bincount(shown.items[places], minlength=shown.num_items)
    model = Ranker(
        config, inputs, ItemCatalogue.empty(shown.num_items), torch.from_numpy(counts).float()
    )
    if model.correction is not None:
        model.correction.fit_scale(torch.from_numpy(shown.features[places]).float())
        fit_line(model.correction, shown, places)
    model = model.to(device)
    order = BatchOrder(len(chosen), TRAINING.batch_size, seed)

    def loss_at(step: int) -> Tensor:
        batch, labels = batch_of(shown, chosen[order.indices(step)], dense=dense)
        return model.loss_of(model(batch.to(device)), labels.to(device))

    def evaluate(_: nn.Module) -> dict[str, float]:
        logits = predict(model, shown, "validation", dense=dense)
        found = measures(shown, "validation", logits)
        return {METRIC: found["auc"] + found["gauc"]}

    steps = replace(TRAINING.for_examples(len(chosen)), metric=METRIC)
    train(model, loss_at, adamw(model, TRAINING.optimizer), steps, evaluate=evaluate)
    model.eval()
    return model


def predict(model: Ranker, shown: Shown, split: str, *, dense: bool) -> Floats:
    """Predict the logit of each candidate of a split, [M]."""
    was_training, parts = model.training, []
    model.eval()
    with torch.no_grad():
        for requests in np.array_split(shown.requests(split), 20):
            batch, _ = batch_of(shown, requests, dense=dense)
            parts.append(model(batch.to(next(model.parameters()).device)).logits[:, 0].cpu())
    model.train(was_training)
    return torch.cat(parts).double().numpy()


@torch.no_grad()
def calibrated(shown: Shown, validation: Floats, test: Floats) -> Floats:
    """Fit a line on the logits of validation, and apply it to those of test, [M]."""
    places = shown.candidates(shown.requests("validation"))
    line = Calibrator(1)
    labels = torch.from_numpy(shown.clicked[places]).float()[:, None]
    line.fit(torch.from_numpy(validation).float()[:, None], labels)
    return torch.logit(line(torch.from_numpy(test).float()[:, None])[:, 0].double()).numpy()


def users_of(shown: Shown, split: str) -> Rows:
    """Number the users of a split's candidates from 0, [M]."""
    places = shown.candidates(shown.requests(split))
    return np.unique(shown.users[shown.of_candidates()[places]], return_inverse=True)[1]


def measures(shown: Shown, split: str, logits: Floats) -> dict[str, float]:
    """Measure scores, or logits as chances, of a split's candidates."""
    places = shown.candidates(shown.requests(split))
    clicked, users = shown.clicked[places], users_of(shown, split)
    found, weights = grouped_auc(logits, clicked, users)
    chances = 1 / (1 + np.exp(-logits))
    return {
        "auc": auc(logits, clicked, np.ones(len(places))),
        "gauc": float((found * weights).sum() / weights.sum()),
        "log_loss": log_loss(chances, clicked),
        "calibration": calibration_error(chances, clicked),
    }


Logits = dict[str, dict[int, Floats]]
"""Of test, by model and seed."""


def read_logits(shown: Shown, paths: list[Path]) -> Logits:
    """Read what was predicted, calibrated on validation."""
    found: dict[str, Floats] = {}
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            found |= {name: file[name] for name in file.files}
    names = sorted({tuple(name.split("|")[:2]) for name in found}, key=lambda one: int(one[1]))
    logits: Logits = {}
    for model, seed in names:
        both = (found[f"{model}|{seed}|{split}"] for split in ("validation", "test"))
        logits.setdefault(model, {})[int(seed)] = calibrated(shown, *both)
    return logits


Gap = tuple[float, float, float]
"""A difference and its interval."""


def resampled(shown: Shown, logits: Logits, ours: str) -> dict[str, Gap]:
    """Bootstrap the users: by how much ours is above each model, by ``model: metric``."""
    places, users = shown.candidates(shown.requests("test")), users_of(shown, "test")
    clicked, count = shown.clicked[places], int(users.max()) + 1
    random = np.random.default_rng(0)
    draws = random.multinomial(count, np.full(count, 1 / count), NUM_DRAWS)  # [draws, U]
    draws = np.vstack([np.ones(count), draws])
    by_model = {}
    for model, seeds in logits.items():
        areas, groups = [], []
        for one in seeds.values():
            found, weights = grouped_auc(one, clicked, users)
            areas.append([auc(one, clicked, weight[users]) for weight in draws])
            groups.append((draws @ (found * weights)) / (draws @ weights))
        by_model[model] = {"auc": np.mean(areas, 0), "gauc": np.mean(groups, 0)}
    gaps = {}
    for model, own in by_model.items():
        for metric in ("auc", "gauc"):
            gap = by_model[ours][metric] - own[metric]
            low, high = np.quantile(gap[1:], [0.025, 0.975])
            gaps[f"{model}: {metric}"] = (gap[0], low, high)
    return gaps


def rows_of(shown: Shown, logits: Logits) -> list[Row]:
    """Lay out the means over seeds, and by how much ours is above each."""
    gaps, rows = resampled(shown, logits, OURS), []
    for model, seeds in logits.items():
        each = [measures(shown, "test", one) for one in seeds.values()]
        for metric in each[0]:
            values = [one[metric] for one in each]
            spread = f" ({min(values):.4f} to {max(values):.4f})"
            rows.append(Row(name=f"{model}: {metric}{spread}", value=float(np.mean(values))))
        if model != OURS:
            for metric in ("auc", "gauc"):
                gap, low, high = gaps[f"{model}: {metric}"]
                name = f"{model}: ours above in {metric} ({low:+.4f} to {high:+.4f})"
                goal = "above 0 by the interval over users"
                rows.append(Row(name=name, value=gap, goal=goal, met=bool(low > 0)))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="folder of impressions.parquet")
    parser.add_argument("--save", type=Path, help="write the arrays and end")
    parser.add_argument("--arrays", type=Path, help="what --save wrote")
    parser.add_argument("--out", type=Path, help="train ours and write its logits")
    parser.add_argument("--logits", type=Path, nargs="+", help="make the table of these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    chosen = parser.parse_args()
    if chosen.save:
        read(chosen.data).save(chosen.save)
        return
    shown = Shown.load(chosen.arrays)
    if chosen.out:
        found = {}
        for seed in chosen.seeds:
            for name, dense in (("ranker", False), (OURS, True)):
                model = fit_ours(shown, seed, dense=dense, device=chosen.device)
                for split in ("validation", "test"):
                    found[f"{name}|{seed}|{split}"] = predict(model, shown, split, dense=dense)
        np.savez_compressed(chosen.out, **found)
        return
    logits = read_logits(shown, chosen.logits)
    odds = shown.features[:, FEATURES.index(BASE)]
    both = (odds[shown.candidates(shown.requests(split))] for split in ("validation", "test"))
    logits["clicks before, a count"] = {0: calibrated(shown, *both)}
    notes = (
        f"{len(chosen.seeds)} seeds; means (least to most of a seed). Every model's logits are "
        "calibrated by a line on validation. Intervals: 95% of a bootstrap over the users of test, "
        f"{NUM_DRAWS} draws, of the mean difference over seeds."
    )
    write_results("impressions", rows_of(shown, logits), notes=notes)


if __name__ == "__main__":
    main()
