"""Tensors with a description that vouches for them: how every artefact of this room is stored.

<name>.safetensors   the tensors
<name>.json          kind, format, what the writer adds, and the sha256 of the tensors
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

FORMAT = 1


def digest_of(description: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Compute a digest of a description and of the tensors' names, types, shapes and bytes."""
    sha = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        sha.update(f"{name}:{array.dtype}:{array.shape}:".encode())
        sha.update(array.data if array.size else b"")
    return sha.hexdigest()


def write_tensors(
    directory: Path, name: str, tensors: dict[str, Tensor], description: dict[str, Any]
) -> None:
    """Write the two files; ``description`` is JSON and has a ``kind``."""
    directory.mkdir(parents=True, exist_ok=True)
    payload = save({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    document = {**description, "format": FORMAT, "sha256": hashlib.sha256(payload).hexdigest()}
    (directory / f"{name}.safetensors").write_bytes(payload)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    (directory / f"{name}.json").write_text(text, encoding="utf-8")


class _Description(dict[str, Any]):
    """A description whose missing keys are the file's fault."""

    path: Path

    def __missing__(self, key: str) -> Any:
        raise _refusal(self.path, f"it has no {key!r}")


def read_description(directory: Path, name: str) -> dict[str, Any]:
    """Read the JSON part alone."""
    path = directory / f"{name}.json"
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _refusal(path, "it is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(path, f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise _refusal(path, f"its format is {found}, this version of the package reads {FORMAT}")
    description = _Description(document)
    description.path = path
    return description


def read_tensors(directory: Path, name: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and their description, as ``write_tensors`` wrote them."""
    document = read_description(directory, name)
    path = directory / f"{name}.safetensors"
    if document.get("kind") != kind:
        raise _refusal(path, f"it is of kind {document.get('kind')!r}, expected {kind!r}")
    if not path.is_file():
        raise _refusal(path, "it is missing")
    payload = path.read_bytes()
    digest = hashlib.sha256(payload).hexdigest()
    if digest != document.get("sha256"):
        raise _refusal(path, f"its sha256 is {digest}, {document.get('sha256')} was written")
    try:
        return load(payload), document
    except SafetensorError as error:
        raise _refusal(path, f"it is not a safetensors file ({error})") from error


def _refusal(path: Path, why: str) -> ValueError:
    return ValueError(f"refused {path}: {why}; fetch it again or build the semantic IDs again")
