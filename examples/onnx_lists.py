"""Lists from an exported bundle, by numpy and ONNX Runtime alone: a file to copy.

    recsys export runs/movielens-100k --out exported
    python examples/onnx_lists.py exported two_tower 50 181 --inputs '{"user.age": 2}'

A folder of ``recsys export`` has:

    export.json             inputs of the models, sha256 of the files, the bundle's digest
    item_ids.json           ids by item row; row 0 is no item
    <model>.onnx            from a history to a unit vector, [1, D]; of the ranker to scores, [C]
    <model>.items.npy       unit vectors of all items, [N, D]

Axes: N item rows, C candidates, G features of a candidate, D width.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]


class ExportedModels:
    """Models of an exported bundle; every file's digest is verified before it is read."""

    def __init__(self, folder: str | Path) -> None:
        """Read a folder that ``recsys export`` wrote.

        Raises:
            ValueError: A file that is missing or was altered.
        """
        folder = Path(folder)
        self.about: dict[str, Any] = json.loads((folder / "export.json").read_text("utf-8"))
        for name, digest in self.about["files"].items():
            path = folder / name
            if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise ValueError(f"{path} was altered; export the bundle again")
        self.models: dict[str, Any] = self.about["models"]
        """Inputs, most events and features of each model, by name."""
        self.item_ids: list[str] = json.loads((folder / "item_ids.json").read_text("utf-8"))
        self._rows = {item: row for row, item in enumerate(self.item_ids) if row}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = {
            model: onnxruntime.InferenceSession(str(folder / f"{model}.onnx"), options)
            for model in self.models
        }
        self.item_vectors: dict[str, Floats] = {
            model: np.load(folder / f"{model}.items.npy", allow_pickle=False)
            for model in self.models
            if model != "ranker"
        }
        """Unit vectors of each model, [N, D]."""

    def query_vector(
        self, model: str, history: Sequence[str], inputs: Mapping[str, Any] | None = None
    ) -> Floats:
        """Encode a history as a unit vector, [D]; items that are not known are left out.

        Args:
            model: Name of an encoder.
            history: Item ids, oldest first.
            inputs: What else the model reads: ``times`` (unix seconds) and ``types`` of these
                events, and rows of the query's features, such as ``{"user.age": 2}``; 0, and what
                is left out, is unknown.
        """
        if model not in self.item_vectors:
            raise ValueError(f"no encoder {model!r}; there are {sorted(self.item_vectors)}")
        if not self._known(history).any():
            raise ValueError(
                f"none of the history's {len(history)} items is known; list popular items instead"
            )
        vector: Floats = self._run(model, history, inputs or {})[0]
        return vector

    def recommend(
        self,
        model: str,
        history: Sequence[str],
        k: int = 10,
        inputs: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, float]]:
        """Return the ids and cosines of the items that fit a history best.

        Items of the history are left out if the bundle's lists do so.
        """
        vector = self.query_vector(model, history, inputs)
        scores = self.item_vectors[model] @ vector
        scores[0] = -np.inf
        if self.about["exclude_history"]:
            scores[self._known(history)] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(k, int(np.isfinite(scores).sum()))]
        return [(self.item_ids[row], float(scores[row])) for row in best]

    def rank(
        self,
        history: Sequence[str],
        candidates: Sequence[str],
        candidate_features: ArrayLike,
        inputs: Mapping[str, Any] | None = None,
    ) -> Floats:
        """Score candidates by the ranker, [C].

        Args:
            history: Item ids, oldest first.
            candidates: Item ids; one that is not known is scored as an unknown item.
            candidate_features: [C, G], in the order of ``models["ranker"]["candidate_features"]``.
            inputs: Rows of the query's features.
        """
        if "ranker" not in self.models:
            raise ValueError(f"the bundle has no ranker; exported are {sorted(self.models)}")
        dense, names = np.asarray(candidate_features), self.models["ranker"]["candidate_features"]
        if dense.shape != (len(candidates), len(names)) or not np.isfinite(dense).all():
            raise ValueError(
                f"candidate_features must be finite and of shape {(len(candidates), len(names))}, "
                f"got {dense.shape}; the columns are {names}"
            )
        feed = {"candidates": self._known(candidates), "candidate_features": dense.astype("f4")}
        return self._run("ranker", history, inputs or {}, feed)

    def _known(self, items: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._rows.get(str(item), 0) for item in items], np.int64)

    def _run(
        self,
        model: str,
        history: Sequence[str],
        inputs: Mapping[str, Any],
        feed: Mapping[str, NDArray[Any]] | None = None,
    ) -> Floats:
        """Run a model on the latest known events, padded to as many as it reads."""
        about, rows = self.models[model], self._known(history)
        known = np.flatnonzero(rows)[-about["max_events"] :]
        ready = {"count": np.array([len(known)]), **(feed or {})}
        for name in about["inputs"]:
            if name in about["features"]:
                row = int(inputs.get(name, 0))
                ready[name] = np.array(row if 0 <= row < about["features"][name] else 0)
            elif name not in ready:
                values = rows if name == "item_rows" else inputs.get(name)
                if values is None or len(values) != len(rows):
                    raise ValueError(f"{model} reads {name}: give one for each of {len(rows)}")
                if name == "types":
                    types = {name: row for row, name in enumerate(self.about["event_types"], 1)}
                    values = [types.get(one, 0) for one in values]
                ready[name] = np.zeros(about["max_events"], np.int64)
                ready[name][: len(known)] = np.asarray(values)[known]
        found: Floats = self._sessions[model].run(None, ready)[0]
        return found


def main() -> None:
    """Print a list for a history."""
    parser = argparse.ArgumentParser(description="Recommend by an exported encoder.")
    parser.add_argument("folder", help="Folder that recsys export wrote.")
    parser.add_argument("model", help="Name of an encoder, such as two_tower.")
    parser.add_argument("history", nargs="+", help="Item ids, oldest first.")
    parser.add_argument("--inputs", type=json.loads, default={}, help="Other inputs, as JSON.")
    given = parser.parse_args()
    found = ExportedModels(given.folder).recommend(given.model, given.history, inputs=given.inputs)
    sys.stdout.writelines(f"{item:20} {cosine:.4f}\n" for item, cosine in found)


if __name__ == "__main__":
    main()
