"""DIN and DCNv2 of FuxiCTR on the lists of ``impressions.py``.

Runs with a Python that has torch and fuxictr 2.3.10:

    PYTHON -m tests.benchmarks.ranker.fuxictr_peers ARRAYS.npz OUT.npz --seeds 0 1 2 3 4

OUT has the logits of validation and test, by the names that ``benchmark_impressions`` reads. Layers
and rates are the library's usual ones; the pass with the best gAUC on validation stays.
"""

from __future__ import annotations

import argparse
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.ranker.impressions import FEATURES, Floats, Rows, Shown, grouped_auc

MAX_HISTORY, BATCH, PASSES, PATIENCE = 50, 1024, 10, 3
ID_REGULARIZER = 1e-5
SETTINGS = {
    "DIN": {"dnn_hidden_units": [256, 128, 64], "attention_hidden_units": [64]},
    "DCNv2": {"parallel_dnn_hidden_units": [256, 128, 64], "num_cross_layers": 3},
}


class Inputs:
    """Batches as FuxiCTR's models read them."""

    def __init__(self, shown: Shown, *, dense: bool) -> None:
        self.shown, self.dense = shown, dense
        self.request = shown.of_candidates()
        self.history = np.zeros((len(shown.users), MAX_HISTORY), np.int64)
        for row, history in enumerate(shown.histories):
            if len(history):
                self.history[row, -min(MAX_HISTORY, len(history)) :] = history[-MAX_HISTORY:]
        train = shown.candidates(shown.requests("train"))
        mean, scale = shown.features[train].mean(0), shown.features[train].std(0)
        self.features = (shown.features - mean) / scale.clip(1e-4)

    def batch(self, places: Rows) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Build the model's inputs of some candidates, labels included."""
        request = self.request[places]
        events = self.history[request]
        items = np.column_stack([events, self.shown.items[places]])
        about = {
            "hour": torch.from_numpy(self.shown.hours[request]),
            "user": torch.from_numpy(self.shown.users[request]),
            "clicked": torch.from_numpy(self.shown.clicked[places]).float(),
        }
        if self.dense:
            values = torch.from_numpy(self.features[places]).float()
            about |= {name.replace(".", "_"): values[:, i] for i, name in enumerate(FEATURES)}
        mask = torch.from_numpy(events > 0).float()
        return about, {"item": torch.from_numpy(items).flatten()}, mask


def feature_map(shown: Shown, *, dense: bool) -> Any:
    """Describe the features of the data to FuxiCTR."""
    from fuxictr.features import FeatureMap

    described = FeatureMap("impressions", ".")
    sizes = {"hour": 25, "user": int(shown.users.max()) + 1, "item": shown.num_items}
    features = {
        name: {
            "type": "categorical",
            "source": "item" if name == "item" else "user",
            "vocab_size": size,
            "padding_idx": 0,
        }
        for name, size in sizes.items()
    }
    if dense:
        features |= {
            name.replace(".", "_"): {"type": "numeric", "source": "user"} for name in FEATURES
        }
    described.features, described.labels = OrderedDict(features), ["clicked"]
    described.num_fields, described.default_emb_dim = len(features), 16
    return described


def build(name: str, shown: Shown, seed: int, folder: Path, *, dense: bool) -> Any:
    """Make an untrained model of FuxiCTR."""
    from model_zoo.LongCTR.DCNv2.DCNv2 import DCNv2
    from model_zoo.LongCTR.DIN.DIN import DIN

    torch.manual_seed(seed)
    described = feature_map(shown, dense=dense)
    return {"DIN": DIN, "DCNv2": DCNv2}[name](
        described,
        model_id=name,
        embedding_dim=16,
        net_dropout=0.1,
        embedding_regularizer=ID_REGULARIZER,
        optimizer="adam",
        loss="binary_crossentropy",
        learning_rate=1e-3,
        metrics=["AUC"],
        verbose=0,
        model_root=str(folder),
        **SETTINGS[name],
    )


def predict(model: Any, inputs: Inputs, split: str) -> Floats:
    """Predict the logit of each candidate of a split, [M]."""
    places = inputs.shown.candidates(inputs.shown.requests(split))
    model.eval()
    with torch.no_grad():
        parts = [model(inputs.batch(one))["y_pred"] for one in np.array_split(places, 40)]
    chances = torch.cat(parts).double().flatten().clamp(1e-7, 1 - 1e-7)
    return torch.logit(chances).numpy()


def fit(name: str, shown: Shown, seed: int, folder: Path, *, dense: bool) -> dict[str, Floats]:
    """Train a peer; return the logits of validation and test at its best pass."""
    model, inputs = build(name, shown, seed, folder, dense=dense), Inputs(shown, dense=dense)
    model._max_gradient_norm, model._batch_index = 10.0, 0
    places, random = shown.candidates(shown.requests("train")), np.random.default_rng(seed)
    held_out = shown.candidates(shown.requests("validation"))
    users = np.unique(shown.users[inputs.request[held_out]], return_inverse=True)[1]
    best, found, waited = -1.0, {}, 0
    for _ in range(PASSES):
        model.train()
        for part in np.array_split(random.permutation(places), len(places) // BATCH):
            model.optimizer.zero_grad()
            model.train_step(inputs.batch(part))
        logits = predict(model, inputs, "validation")
        own, weights = grouped_auc(logits, shown.clicked[held_out], users)
        gauc, waited = float((own * weights).sum() / weights.sum()), waited + 1
        if gauc > best:
            best, waited = gauc, 0
            found = {"validation": logits, "test": predict(model, inputs, "test")}
        if waited >= PATIENCE:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    chosen = parser.parse_args()
    logging.disable(logging.INFO)
    shown = Shown.load(chosen.arrays)
    found = {}
    for seed in chosen.seeds:
        for name in SETTINGS:
            for dense in (False, True):
                logits = fit(name, shown, seed, chosen.out.parent, dense=dense)
                kind = f"{name}{', with features' if dense else ''}"
                found |= {f"{kind}|{seed}|{split}": one for split, one in logits.items()}
    np.savez_compressed(chosen.out, **found)


if __name__ == "__main__":
    main()
