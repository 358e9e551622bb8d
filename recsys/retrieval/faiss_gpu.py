"""A copy of a flat or IVF-SQ8 index on a GPU, for searches without a mask.

The index in host memory stays what is saved, grown and searched under masks, which faiss has no
GPU form of. IVF-SQ8 probes its lists on the GPU; its half-precision copies lie there as a tensor.

Axes: B queries, N item rows (row 0 included), D width, C candidates that are re-scored.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from recsys.retrieval.faiss_library import RESCORED_PER_RESULT, Kind, as_float32, load_faiss

MAX_GPU_WIDTH = 2048
"""faiss's GPU kernels keep at most so many results of a query, and probe at most so many lists."""


def check_gpu(kind: Kind, device: torch.device) -> None:
    """Refuse what cannot be moved to a GPU.

    Raises:
        ValueError: No CUDA device of that number, a faiss without GPU support, or HNSW.
    """
    if device.type != "cuda":
        raise ValueError(f"an index is searched on 'cpu' or 'cuda', got {str(device)!r}")
    if kind == "hnsw":
        raise ValueError("HNSW has no GPU form; build kind 'flat' or 'ivf_sq8', or stay on 'cpu'")
    faiss = load_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        raise ValueError(
            f"the installed faiss {faiss.__version__} has no GPU support; install faiss-gpu in "
            "place of faiss-cpu, or stay on device 'cpu'"
        )
    if (device.index or 0) >= faiss.get_num_gpus():
        raise ValueError(
            f"there is no device {str(device)!r}: faiss sees {faiss.get_num_gpus()} GPUs; stay on "
            "device 'cpu'"
        )


class GpuCopy:
    """The vectors of an index on one GPU; searches of several threads wait for each other."""

    def __init__(self, index: Any, kind: Kind, device: torch.device, copies: Tensor) -> None:
        """Copy a filled index.

        Args:
            index: The faiss index in host memory.
            copies: Its stored vectors, [N, D]; read for IVF-SQ8 alone.
        """
        faiss = load_faiss()
        self.device = torch.device("cuda", device.index or 0)
        self._resources = faiss.StandardGpuResources()
        self._lock = threading.Lock()
        bare = faiss.downcast_index(index.base_index) if kind == "ivf_sq8" else index
        self._index = faiss.index_cpu_to_gpu(self._resources, self.device.index, bare)
        self._copies = copies.to(self.device) if kind == "ivf_sq8" else None

    def takes(self, width: int) -> bool:
        """Whether lists of this length can be found on a GPU."""
        return width <= MAX_GPU_WIDTH

    def search(self, queries: Tensor, width: int, effort: int) -> tuple[Tensor, Tensor]:
        """Find the best of all rows, row 0 among them: scores and rows on the CPU, [B, width].

        Args:
            queries: [B, D], on any device.
            width: Rows for each query, at most ``MAX_GPU_WIDTH``; missing ones are row -1.
            effort: Lists probed (IVF).
        """
        faiss, parameters, num_found = load_faiss(), None, width
        if self._copies is not None:
            parameters = faiss.SearchParametersIVF(nprobe=min(effort, MAX_GPU_WIDTH))
            num_found = min(int(RESCORED_PER_RESULT * width), MAX_GPU_WIDTH)
        with self._lock:
            scores, rows = self._index.search(as_float32(queries), num_found, params=parameters)
        if self._copies is None:
            return torch.from_numpy(scores), torch.from_numpy(rows)
        return self._rescored(queries, torch.from_numpy(rows), width)

    def _rescored(self, queries: Tensor, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Score candidates [B, C] by the half-precision copies and keep the best."""
        assert self._copies is not None
        rows = rows.to(self.device)
        vectors = self._copies[rows.clamp_min(0)].float()  # [B, C, D]
        wanted = queries.detach().to(self.device).float()
        scores = torch.einsum("bcd,bd->bc", vectors, wanted).masked_fill_(rows < 0, -torch.inf)
        best, place = scores.topk(width, dim=1)
        return best.cpu(), rows.gather(1, place).cpu()
