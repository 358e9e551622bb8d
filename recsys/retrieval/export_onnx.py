"""Query encoders and the ranker as ONNX files, for programs without torch.

Graphs read one history of L item rows, padded after its events, so that their shapes are fixed;
``examples/onnx_lists.py`` runs them.

Axes: L most events that a model reads, C candidates, D width.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx.utils import register_custom_op_symbolic

from recsys.data.batch import Jagged, one_example
from recsys.data.durable import digest_of_file, new_directory
from recsys.layers.attention.target import ReadableHistory
from recsys.layers.moe.experts import Experts, SparseMoe
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import QueryReader
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import SourceQuery

OPSET = 17
RANKER = "ranker"
NUM_CHECKED = 100
"""Users whose vectors and scores are compared."""
TOLERANCE = 1e-5
"""Largest difference of a number between an exported model and its original."""
BLOCKS = {"attention", "convolution"}
"""Kinds of block that ONNX can express."""


class _Graph(nn.Module):
    """A model of one history; inputs are ``item_rows``, ``count`` and those named in ``others``."""

    others: list[str]

    def __init__(self, model: Any, max_events: int) -> None:
        super().__init__()
        self.model, self.max_events, self.table = model, max_events, model.all_item_inputs()
        tables = model.inputs.query_tables(embedding_dim=1)
        self.features = {table.features[0]: table.num_rows for table in tables}

    def events(self, item_rows: Tensor, count: Tensor, recency: Tensor) -> tuple[Tensor, Tensor]:
        """Read events with the vectors added by their age, [L, D], and a mask, -inf for padding."""
        age = count - 1 - torch.arange(self.max_events)
        mask = torch.zeros(self.max_events).masked_fill(age < 0, -torch.inf)
        return self.table[item_rows] + recency[age.clamp_min(0)], mask


class _QueryTower(_Graph):
    def __init__(self, model: TwoTower) -> None:
        super().__init__(model, model.config.max_history)
        self.others = [*(["types"] if model.event_types is not None else []), *self.features]

    def forward(self, item_rows: Tensor, count: Tensor, *others: Tensor) -> Tensor:
        given, tower = dict(zip(self.others, others, strict=True)), self.model.query_tower
        values, mask = self.events(item_rows, count, tower.recency.weight)
        values = self.model.with_types(values, given.get("types"))
        last, normed = values.index_select(0, count - 1), tower.attention_norm(values)
        attention = tower.attention
        query = attention.query(normed.index_select(0, count - 1)) @ attention.key[0]
        weights = (query @ normed.T / math.sqrt(normed.shape[1]) + mask).softmax(1)
        state = last + attention.output(weights @ normed @ attention.value[0])
        state = tower.output_norm(state + tower.hidden(state))
        for name in self.features:
            state = state + tower.features.one_row(name, given[name])
        return functional.normalize(state, dim=1, eps=NORM_FLOOR)


class _SequenceEncoder(_Graph):
    def __init__(self, model: SequenceModel) -> None:
        super().__init__(model, model.config.max_length)
        self.others = [name for name, is_read in model.reads.items() if is_read]
        config = model.config
        if wrong := {config.blocks_of(n) for n in range(config.num_members)} - BLOCKS:
            raise ValueError(
                f"the sequence model has blocks of kind {', '.join(sorted(wrong))}, which ONNX "
                f"does not express; export models of {' and '.join(sorted(BLOCKS))}"
            )

    def forward(self, item_rows: Tensor, count: Tensor, *others: Tensor) -> Tensor:
        given = dict(zip(self.others, others, strict=True))
        inputs = self.model.with_types(self.table[item_rows], given.get("types"))
        encoded = self.model.encoder(inputs, _Whole(*one_example(item_rows)), given.get("times"))
        vectors: Tensor = encoded.index_select(0, count - 1)
        return vectors


class _Whole(Jagged):
    def segments(self) -> Tensor:
        return torch.zeros_like(self.values)


class _Ranking(_Graph):
    def __init__(self, model: Ranker) -> None:
        super().__init__(model, model.config.max_history)
        self.routing = model.all_item_routing()
        self.model = copy.deepcopy(model)
        self.model.trunk.norm = _PlainNorm(model.trunk.norm)
        if isinstance(body := self.model.trunk.body, SparseMoe):
            body.experts = _EveryExpert(body.experts)  # type: ignore[assignment]
        self.others = ["candidates", "candidate_features", *self.features]

    def forward(self, item_rows: Tensor, count: Tensor, *others: Tensor) -> Tensor:
        given, attention = dict(zip(self.others, others, strict=True)), self.model.attention
        values, mask = self.events(item_rows, count, attention.recency.weight)
        values = torch.cat([attention.nothing[None], values])[None]
        mask = functional.pad(mask, (1, 0))[None, None]
        history = ReadableHistory(attention.key(values), values, mask)
        reader = QueryReader(history, self.model.query_fields.of_one(given))
        rows, dense = given["candidates"], given["candidate_features"][None]
        routed = None if self.routing is None else self.routing.of_rows(rows)
        ranked = self.model.rank(reader, self.table[rows][None], dense, None, routed)
        scores: Tensor = self.model.combined(self.model.calibrated(ranked.logits))
        return scores


class _PlainNorm(nn.Module):
    """An RMSNorm by operators that ONNX has."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps

    def forward(self, rows: Tensor) -> Tensor:
        return rows * torch.rsqrt(rows.square().mean(1, keepdim=True) + self.eps) * self.weight


class _EveryExpert(nn.Module):
    """Experts that all read each row; those that were not chosen do not count."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.up, self.down = experts.up, experts.down

    def forward(self, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        hidden = torch.einsum("bd,efd->bef", rows, self.up).relu()
        outputs = torch.einsum("bef,eof->beo", hidden, self.down)
        chosen = outputs.gather(1, experts[:, :, None].expand(-1, -1, outputs.shape[2]))
        return (chosen * weights[:, :, None]).sum(1)


def _exponent(graph: Any, values: Any) -> tuple[Any, Any]:
    """Express ``torch.frexp`` of whole seconds, whose logarithm is rounded up a little."""
    log2, shift = (
        graph.op("Constant", value_t=torch.tensor(one, dtype=torch.float64))
        for one in (math.log(2), 1 + 1e-11)
    )
    power = graph.op("Add", graph.op("Div", graph.op("Log", values), log2), shift)
    return values, graph.op("Cast", graph.op("Floor", power), to_i=7)


GRAPHS: Any = {TwoTower: _QueryTower, SequenceModel: _SequenceEncoder, Ranker: _Ranking}


def export_model(model: Any, path: Path, absent: Collection[str] = ()) -> dict[str, Any]:
    """Write a two-tower, sequence model or ranker, and describe its inputs.

    Args:
        absent: ``times`` or ``types``, if events have none.

    Raises:
        ValueError: A kind of model that ONNX does not express.
    """
    graph = GRAPHS[type(model)](model)
    graph.others = [name for name in graph.others if name not in absent]
    columns = list(getattr(model.inputs, "candidate_dense", ()))
    rows, pair = torch.ones(graph.max_events, dtype=torch.int64), torch.tensor([1, 1])
    examples = {"times": rows, "types": rows, "candidates": pair}
    examples["candidate_features"] = torch.ones(2, len(columns))
    names = ["item_rows", "count", *graph.others]
    register_custom_op_symbolic("aten::frexp", _exponent, OPSET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.eval(),
            (rows, pair[:1], *(examples.get(name, torch.tensor(0)) for name in graph.others)),
            str(path),
            input_names=names,
            output_names=["found"],
            dynamic_axes={name: {0: "C"} for name in [*names[2:4], "found"] if columns},
            opset_version=OPSET,
            dynamo=False,
        )
    described = {"inputs": names, "max_events": graph.max_events, "features": graph.features}
    return {**described, "candidate_features": columns}


def _check_packages() -> None:
    try:
        import_module("onnx"), import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(
            f"{error.name} is not installed; pip install 'recsys-platform[onnx]' installs it"
        ) from error


def export_bundle(bundle: Any, target: Path) -> dict[str, float]:
    """Write a folder of models, if their numbers are those of the bundle.

    Args:
        bundle: A loaded one, `serving.bundle.load.Bundle`.

    Returns:
        The largest difference of a number, by model.

    Raises:
        ValueError: Nothing to export, a kind of model that cannot be, or numbers that differ.
    """
    _check_packages()
    parts = {
        "two_tower": bundle.retriever and bundle.retriever.model,
        "sequence": bundle.sequence,
        "ensemble": bundle.ensemble,
        RANKER: bundle.ranker and bundle.ranker.model,
    }
    models = {name: model for name, model in parts.items() if model is not None}
    if not models:
        raise ValueError(
            f"{bundle.directory} has neither a two-tower, nor a sequence model, nor a ranker to "
            "export; enable one (sequence_training.enabled) and run again"
        )
    absent = [name for name in ("times", "types") if getattr(bundle.users, name) is None]
    with new_directory(target) as folder:
        described, found = {}, {}
        for name, model in models.items():
            path = folder / f"{name}.onnx"
            described[name] = export_model(model, path, absent)
            found[name] = compare(bundle, model, described[name], path)
            if name != RANKER:
                np.save(folder / f"{name}.items.npy", model.all_item_vectors().detach().numpy())
        if not max(found.values()) <= TOLERANCE:
            raise ValueError(
                f"exported models differ from the bundle's by {found}, allowed are {TOLERANCE}; "
                "nothing was exported: try another version of onnxruntime"
            )
        ids = json.dumps(list(bundle.catalogue.item_ids), ensure_ascii=False)
        (folder / "item_ids.json").write_text(ids, encoding="utf-8")
        document = {
            "format": "onnx",
            "bundle": {"version": bundle.version, "digest": bundle.digest},
            "exclude_history": bundle.exclude_history,
            "event_types": list(bundle.event_types),
            "models": described,
            "files": {path.name: digest_of_file(path) for path in sorted(folder.iterdir())},
        }
        (folder / "export.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return found


def compare(bundle: Any, model: Any, described: Mapping[str, Any], path: Path) -> float:
    """Return the largest difference between a model's and its file's numbers for some users."""
    session = import_module("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    users, length, worst = bundle.users, described["max_events"], 0.0
    rows = {name: num_rows - 1 for name, num_rows in described["features"].items()}
    some = np.flatnonzero(np.diff(users.offsets) > 0)
    for user in some[:: max(1, len(some) // NUM_CHECKED)][:NUM_CHECKED].tolist():
        history, times, types = users.events(user)
        given = {"item_rows": history, "times": times, "types": types}
        latest = {name: one[-length:] for name, one in given.items() if one is not None}
        feed = {name: np.pad(one, (0, length - len(one))) for name, one in latest.items()}
        feed |= {name: np.array(row) for name, row in rows.items()}
        feed["count"] = np.array([min(length, len(history))])
        if isinstance(model, Ranker):
            candidates = torch.randint(1, model.num_item_rows, (NUM_CHECKED,))
            dense = torch.randn(NUM_CHECKED, len(model.inputs.candidate_dense))
            reader = model.reader_of_one(torch.as_tensor(history), rows)
            expected = model.score_candidates(reader, candidates, dense)
            feed |= {"candidates": candidates.numpy(), "candidate_features": dense.numpy()}
        else:
            query = SourceQuery(history=history, times=times, types=types, categorical=rows)
            expected = model.query_vectors(query.features)
        scores = session.run(None, {name: feed[name] for name in described["inputs"]})[0]
        worst = max(worst, float(np.abs(scores - expected.numpy()).max()))
    return worst
