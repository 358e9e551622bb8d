"""Any Hugging Face model as an encoder of texts, decoder language models included.

The last hidden states of a text's tokens become one vector: their mean, or the state of the last
token, which alone has read the whole text in a decoder (E5-Mistral, arXiv:2401.00368).

Axes: n texts, B batch, T tokens, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from recsys.content.encoder import Vectors, batches_of_size, encodable, encoded_in_batches

Pooling = Literal["mean", "last"]
MODEL_ENDINGS = {".gguf", ".json", ".model", ".safetensors", ".txt"}
"""Endings of the files that shape a model's vectors."""


def load_transformer(path: Path) -> tuple[Any, Any]:
    """Load (tokenizer, model in float32) from a Hugging Face folder or a GGUF file.

    Nothing is downloaded, no code of the folder runs, and weights must be safetensors or GGUF.
    """
    gguf = path.suffix == ".gguf"
    if not (path if gguf else path / "config.json").is_file():
        raise ValueError(
            f"{path} is no model: it must be a folder with a config.json, or a .gguf file"
        )
    import transformers
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging
    bars.disable_progress_bar()
    library: Any = transformers
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    where |= {"gguf_file": path.name} if gguf else {}
    folder = str(path.parent if gguf else path)
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **where)
        if not gguf:
            where["use_safetensors"] = True
        model = library.AutoModel.from_pretrained(folder, dtype="float32", **where)
    except (OSError, ImportError, KeyError) as error:
        raise ValueError(f"cannot load the model {path}: {str(error).splitlines()[0]}") from error
    finally:
        bars.enable_progress_bar()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.eval()


def model_digest(path: Path) -> str:
    """Hash what shapes a model's vectors: the GGUF file, or a folder's weights and settings."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and file.suffix in MODEL_ENDINGS:
            with file.open("rb") as content:
                inner = hashlib.file_digest(content, "sha256").hexdigest()
            digest.update(f"{file.relative_to(path) if path.is_dir() else ''}:{inner}\n".encode())
    return digest.hexdigest()[:12]


class TransformerEncoder:
    """Pools the hidden states of a model folder or GGUF file, in float32."""

    shard_rows = 1024

    def __init__(
        self,
        path: Path,
        *,
        pooling: Pooling = "mean",
        max_tokens: int = 512,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        """Load the model."""
        import torch

        self._torch: Any = torch
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer, model = load_transformer(path)
        # Behind the text, so that position and last token are those of the text alone.
        self.tokenizer.padding_side = "right"
        self._model = model.to(device)
        self._pooling = pooling
        self._max_tokens = max_tokens
        self._batch_size = batch_size
        stem = path.stem if path.is_file() else path.name
        self.name = f"{stem}-{pooling}-{max_tokens}-{model_digest(path)}"
        self.dim = int(model.config.hidden_size)

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        texts = encodable(texts)
        batches = batches_of_size([len(text) for text in texts], self._batch_size)
        return encoded_in_batches(
            texts, self.dim, batches, lambda rows: self._pooled([texts[i] for i in rows]), progress
        )

    def _pooled(self, texts: list[str]) -> Vectors:
        """Encode some texts at once, [B, D], lengths as the model gives them."""
        batch = self.tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
            return_token_type_ids=False,
        ).to(self._model.device)
        with self._torch.inference_mode():
            states = self._model(**batch).last_hidden_state.float()  # [B, T, D]
            mask = batch["attention_mask"].unsqueeze(-1)  # [B, T, 1]
            if self._pooling == "mean":
                pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)  # [B, D]
            else:
                last = mask.sum(1).clamp(min=1) - 1  # [B, 1]
                pooled = states.take_along_dim(last.unsqueeze(-1), 1).squeeze(1)  # [B, D]
        vectors: Vectors = pooled.cpu().numpy()
        return vectors
