"""Words and pairs of a catalogue, weighted by rarity and reduced to few columns.

Latent semantic analysis (Deerwester et al., JASIS 41, 1990): a term counts 1 plus the logarithm of
its occurrences, times its rarity, log(n / texts with it). Columns are the directions along which
the catalogue's texts vary most, so terms of the same texts share them. New items are encoded by
the same fit, whose file is released with the catalogue's vectors.

Axes: n texts, W terms, D width.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from recsys.content.encoder import Vectors, count_terms, normalized
from recsys.data.threads import one_thread

WIDTH = 256
MIN_TEXTS, MAX_TERMS = 2, 30_000
"""Texts that a term must be in, and most terms that are kept, those of the most texts."""
MAX_FITTED = 25_000
"""Texts that terms and columns are found in, drawn at random from larger catalogues."""
SPARE, PASSES = 44, 2
"""Further columns while the fit iterates, and its passes (Halko et al., arXiv:0909.4061)."""
BLOCK = 4_096
"""Texts that are encoded at a time."""
SEED = 0


class LatentWords:
    """Encodes texts by the terms that a catalogue has; others say nothing."""

    def __init__(self, terms: Sequence[str], rarity: Tensor, directions: Tensor) -> None:
        """Take a fit.

        Args:
            terms: W words and pairs.
            rarity: Weight of each, [W].
            directions: Each in the columns, [W, D]; kept to half precision.
        """
        self.terms, self.rarity, self.directions = terms, rarity, directions.half().float()
        self._columns = {term: column for column, term in enumerate(terms)}

    @classmethod
    def fit(cls, texts: Sequence[str]) -> LatentWords:
        """Find terms and columns; columns that few texts leave without a use are zeros."""
        if len(texts) > MAX_FITTED:
            drawn = np.random.default_rng(SEED).permutation(len(texts))[:MAX_FITTED]
            texts = [texts[row] for row in np.sort(drawn)]
        counted = [count_terms(text) for text in texts]
        number = sum(map(bool, counted))
        # What all texts say, such as the name of a kind, has the weight 0.
        texts_with = Counter(term for one in counted for term in one)
        kept = sorted((-m, term) for term, m in texts_with.items() if MIN_TEXTS <= m < number)
        terms = [term for _, term in kept[:MAX_TERMS]]
        rarity = torch.tensor([number / -many for many, _ in kept[:MAX_TERMS]]).log()
        fitted = cls(terms, rarity, torch.zeros(len(terms), WIDTH))
        if not terms:
            return fitted
        weighed = fitted._weigh(counted)
        # The number of threads changes the bits of dense products.
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            found = torch.svd_lowrank(weighed, min(WIDTH + SPARE, *weighed.shape), PASSES)[2]
        directions = functional.pad(found[:, :WIDTH], (0, max(0, WIDTH - found.shape[1])))
        return cls(terms, rarity, directions)

    @cached_property
    def name(self) -> str:
        """Identity of the vectors."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return f"latent-words-{digest.hexdigest()[:12]}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode, [n, D], rows of unit length, or zeros for texts without a known term."""
        vectors = np.zeros((len(texts), WIDTH), np.float32)
        for begin in range(0, len(texts), BLOCK):
            counted = [count_terms(text) for text in texts[begin : begin + BLOCK]]
            vectors[begin : begin + BLOCK] = (self._weigh(counted) @ self.directions).numpy()
        return normalized(vectors)

    def _weigh(self, counted: Sequence[Counter[str]]) -> Tensor:
        """Weigh the known terms of texts, sparse [n, W] of unit rows."""
        terms, counts, sizes = list[int](), list[int](), list[int]()
        for one in counted:
            known = [term for term in one if term in self._columns]
            terms += (self._columns[term] for term in known)
            counts += (one[term] for term in known)
            sizes.append(len(known))
        rows = torch.repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
        columns, times = torch.tensor(terms, dtype=torch.int64), torch.tensor(counts)
        weights = (1 + times.log()) * self.rarity[columns]
        squares = torch.zeros(len(counted)).index_add_(0, rows, weights**2)
        weights = weights / squares[rows].sqrt()
        places, shape = torch.stack([rows, columns]), (len(counted), len(self.terms))
        return torch.sparse_coo_tensor(places, weights, shape, check_invariants=True).coalesce()

    def _tensors(self) -> dict[str, Tensor]:
        terms = bytearray("\n".join(self.terms), "utf-8", "surrogatepass")
        tensors = {"rarity": self.rarity, "directions": self.directions.half()}
        return {"terms": torch.tensor(list(terms), dtype=torch.uint8), **tensors}

    def save(self, path: Path) -> None:
        """Write the fit into one file."""
        save_file(self._tensors(), path)

    @classmethod
    def load(cls, path: Path) -> LatentWords:
        """Read what `save` wrote."""
        tensors = load_file(path)
        terms = tensors["terms"].numpy().tobytes().decode("utf-8", "surrogatepass")
        return cls(terms.split("\n") if terms else [], tensors["rarity"], tensors["directions"])
