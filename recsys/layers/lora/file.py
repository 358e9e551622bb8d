"""Adapters on disk, as PEFT writes and reads them: adapter_config.json, adapter_model.safetensors.

What PEFT has no place for is in the safetensors header: the digest of the base's weights and
the domain. ``PeftModel.from_pretrained(base, directory)`` reads such a directory as it is; tables,
which are parameters to PEFT, it corrects once it merges them (``merge_and_unload``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights, targeted_tables

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PLAIN: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "use_dora": False,
    "use_rslora": False,
}
"""Options of PEFT that this package lacks: any other value is refused."""


@dataclass(frozen=True, kw_only=True)
class AdapterFile:
    """A saved adapter that fits no model yet."""

    config: LoraConfig
    base_digest: str
    domain: str
    tensors: dict[str, Tensor]
    """``<layer>.lora_A.weight`` [r, I] and ``<layer>.lora_B.weight`` [O, r]; of a table
    [r, D] and [N, r], with zeros for rows that are not corrected."""


def save_adapter(adapter: LoraAdapter, directory: Path, *, domain: str) -> None:
    """Write an adapter as PEFT does."""
    directory.mkdir(parents=True, exist_ok=True)
    matrices = _matrices(adapter)
    tensors = {
        f"{PREFIX}{name}": matrix.detach().float().cpu().contiguous()
        for name, matrix in matrices.items()
    }
    header = {"format": "pt", "base_digest": adapter.base_digest, "domain": domain}
    save_file(tensors, directory / WEIGHTS, metadata=header)
    sort_header(directory / WEIGHTS)
    document = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": f"sha256:{adapter.base_digest}",
        "inference_mode": True,
        "r": adapter.config.rank,
        "lora_alpha": adapter.config.alpha,
        "lora_dropout": adapter.config.dropout,
        "target_modules": list(adapter.layers),
        "target_parameters": [table.parameter for table in adapter.tables.values()],
        **PLAIN,
    }
    (directory / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def sort_header(path: Path) -> None:
    """Sort the metadata of a safetensors file, which the library writes in any order.

    Equal adapters are equal files then. The header's length stays, and so do the places of tensors.
    """
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= end - 8, "the same keys and values take no more room"
    path.write_bytes(whole[:8] + text.ljust(end - 8) + whole[end:])


def read_adapter(directory: Path) -> AdapterFile:
    """Read an adapter's files."""
    settings = _read_settings(directory / CONFIG)
    path = directory / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key.removeprefix(PREFIX): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
    if "base_digest" not in header:
        raise ValueError(
            f"{path} does not say which base it was trained on; only adapters that this platform "
            "saved do. Train it with recsys release adapt"
        )
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{path} holds NaN or infinity in {name}; train the adapter again")
    return AdapterFile(
        config=settings,
        base_digest=header["base_digest"],
        domain=header.get("domain", ""),
        tensors=tensors,
    )


def _read_settings(path: Path) -> LoraConfig:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        for name, only in PLAIN.items():
            if document.get(name, only) != only:
                raise ValueError(f"{name} is {document[name]!r}, only {only!r} is supported")
        if document["peft_type"] != "LORA":
            raise ValueError(f"peft_type is {document['peft_type']!r}, only 'LORA' is supported")
        return LoraConfig(
            targets=tuple(document["target_modules"]),
            # <layer>.collection.embedding_bags.<table>.weight
            tables=tuple(one.split(".")[-2] for one in document.get("target_parameters") or ()),
            rank=int(document["r"]),
            alpha=float(document["lora_alpha"]),
            dropout=float(document.get("lora_dropout", 0.0)),
            max_share=1.0,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a LoRA configuration: {error}") from error


def load_adapter(
    directory: Path, base: nn.Module, *, base_digest: str | None = None
) -> LoraAdapter:
    """Read an adapter for the base that it was trained on, in evaluation mode, not attached."""
    saved = read_adapter(directory)
    digest = base_digest or digest_of_weights(base)
    if saved.base_digest != digest:
        raise ValueError(
            f"the adapter in {directory} was trained on a base with digest {saved.base_digest}, "
            f"this base has {digest}; load it with its own base, or train it again on this one"
        )
    adapter = LoraAdapter(base, saved.config, base_digest=digest, rows=_corrected(saved, base))
    expected = _matrices(adapter)
    if saved.tensors.keys() != expected.keys():
        odd = sorted(saved.tensors.keys() ^ expected.keys())
        raise ValueError(
            f"{directory / WEIGHTS} and {CONFIG} do not agree on {odd[0]!r}; train it again"
        )
    for name, matrix in expected.items():
        found = saved.tensors[name]
        if found.shape != matrix.shape:
            raise ValueError(
                f"{directory / WEIGHTS} has {name} {tuple(found.shape)}, rank and layer need "
                f"{tuple(matrix.shape)}; train it again"
            )
    with torch.no_grad():
        for name in adapter.layers:
            one = adapter.correction(name)
            one.a.copy_(saved.tensors[f"{name}.lora_A.weight"])
            one.b.copy_(saved.tensors[f"{name}.lora_B.weight"])
        for name, table in adapter.tables.items():
            rows, path = adapter.table_correction(name), table.parameter.removesuffix(".weight")
            rows.a.copy_(saved.tensors[f"{path}.lora_A.weight"])
            rows.b.copy_(saved.tensors[f"{path}.lora_B.weight"][rows.rows.cpu()])
    return adapter.eval()


def _matrices(adapter: LoraAdapter) -> dict[str, Tensor]:
    """Return an adapter's matrices by PEFT's names."""
    tensors: dict[str, Tensor] = {}
    for name in adapter.layers:
        one = adapter.correction(name)
        tensors |= {f"{name}.lora_A.weight": one.a, f"{name}.lora_B.weight": one.b}
    for name, table in adapter.tables.items():
        rows, path = adapter.table_correction(name), table.parameter.removesuffix(".weight")
        tensors |= {f"{path}.lora_A.weight": rows.a, f"{path}.lora_B.weight": rows.whole_b()}
    return tensors


def _corrected(saved: AdapterFile, base: nn.Module) -> dict[str, Tensor]:
    """Find the rows of each table that an adapter corrects: those that are not zero."""
    rows: dict[str, Tensor] = {}
    for name, table in targeted_tables(base, saved.config.tables).items():
        whole = saved.tensors.get(f"{table.parameter.removesuffix('.weight')}.lora_B.weight")
        if whole is not None:
            found = whole.abs().sum(1).nonzero()[:, 0]
            # An adapter that learnt nothing has none, and a correction needs one.
            rows[name] = found if len(found) else torch.ones(1, dtype=torch.int64)
    return rows
