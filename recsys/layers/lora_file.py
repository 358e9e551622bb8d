"""Adapters on disk, as PEFT writes and reads them: adapter_config.json, adapter_model.safetensors.

What PEFT has no place for lies in the safetensors header: the digest of the base's weights and
the domain. ``PeftModel.from_pretrained(base, directory)`` reads such a directory as it is.
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

from recsys.layers.lora import LoraAdapter, LoraConfig, digest_of_weights

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
"""What PEFT can do and this package cannot: any other value is refused."""


@dataclass(frozen=True, kw_only=True)
class AdapterFile:
    """A saved adapter that fits no model yet."""

    config: LoraConfig
    base_digest: str
    domain: str
    tensors: dict[str, Tensor]
    """``<layer>.lora_A.weight`` [r, I] and ``<layer>.lora_B.weight`` [O, r]."""


def save_adapter(adapter: LoraAdapter, directory: Path, *, domain: str) -> None:
    """Write an adapter as PEFT does."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name in adapter.layers:
        one = adapter.correction(name)
        for letter, matrix in (("A", one.a), ("B", one.b)):
            key = f"{PREFIX}{name}.lora_{letter}.weight"
            tensors[key] = matrix.detach().float().cpu().contiguous()
    header = {"format": "pt", "base_digest": adapter.base_digest, "domain": domain}
    save_file(tensors, directory / WEIGHTS, metadata=header)
    document = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": f"sha256:{adapter.base_digest}",
        "inference_mode": True,
        "r": adapter.config.rank,
        "lora_alpha": adapter.config.alpha,
        "lora_dropout": adapter.config.dropout,
        "target_modules": list(adapter.layers),
        **PLAIN,
    }
    (directory / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read_adapter(directory: Path) -> AdapterFile:
    """Read an adapter's files.

    Raises:
        ValueError: Names the file and what is wrong with it.
    """
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
            "saved do. Train it with recsys adapt"
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
    """Read an adapter for the base that it was trained on, in evaluation mode, not attached.

    Args:
        base_digest: Of the base where it is known.

    Raises:
        ValueError: If a file is damaged, or it was trained on another base; names both digests.
    """
    saved = read_adapter(directory)
    digest = base_digest or digest_of_weights(base)
    if saved.base_digest != digest:
        raise ValueError(
            f"the adapter in {directory} was trained on a base with digest {saved.base_digest}, "
            f"this base has {digest}; load it with its own base, or train it again on this one"
        )
    adapter = LoraAdapter(base, saved.config, base_digest=digest)
    expected = {
        f"{name}.lora_{letter}.weight": matrix
        for name in adapter.layers
        for letter, matrix in (
            ("A", adapter.correction(name).a),
            ("B", adapter.correction(name).b),
        )
    }
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
            matrix.copy_(found)
    return adapter.eval()
