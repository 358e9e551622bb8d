"""Any Hugging Face model as an encoder of texts, decoder language models included.

The last hidden states of a text's tokens become one vector: their mean, or the state of the last
token, which alone has read the whole text in a decoder (E5-Mistral, arXiv:2401.00368).

Axes: n texts, B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from recsys.content.encoder import Vectors, batches_of_size, encodable, encoded_in_batches
from recsys.content.language_model import load_transformer, model_digest

Pooling = Literal["mean", "last"]


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
        self.tokenizer, model = load_transformer(path, head=False)
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
