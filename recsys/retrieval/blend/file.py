"""Tensors of a blend with a description, both vouched for by one digest.

learned_blend.safetensors   the tensors
learned_blend.json          what they mean, their sha256, and a digest over itself
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from recsys.data.durable import write_durably

TENSORS = "learned_blend.safetensors"
DESCRIPTION = "learned_blend.json"
FORMAT = 1


def write_blend(directory: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> str:
    """Write both files and return the digest that covers them."""
    payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    document = {
        **about,
        "format": FORMAT,
        "tensors_sha256": hashlib.sha256(payload).hexdigest(),
    }
    digest = _digest(document)
    text = json.dumps({**document, "sha256": digest}, indent=2, sort_keys=True) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in ((TENSORS, payload), (DESCRIPTION, text.encode())):
        write_durably(directory / name, content)
    return digest


def read_blend(directory: Path, sha256: str | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_blend` wrote."""
    try:
        document = json.loads((directory / DESCRIPTION).read_bytes())
        payload = (directory / TENSORS).read_bytes()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(directory, f"a part cannot be read ({error})") from error
    named = document.pop("sha256", None) if isinstance(document, dict) else None
    if named is None or _digest(document) != named or named != (sha256 or named):
        raise _refusal(directory, f"{DESCRIPTION} does not match its digest {sha256 or named}")
    if document.get("format") != FORMAT:
        raise _refusal(
            directory,
            f"its format is {document.get('format')}, this version of the package reads {FORMAT}",
        )
    if hashlib.sha256(payload).hexdigest() != document["tensors_sha256"]:
        raise _refusal(directory, f"{TENSORS} does not match its digest")
    return load(payload), document


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _refusal(directory: Path, why: str) -> ValueError:
    return ValueError(f"refused the blend in {directory}: {why}; fetch it again or fit it again")
