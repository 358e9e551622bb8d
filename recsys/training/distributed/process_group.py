"""Join the processes of a training: gloo on CPUs, NCCL on GPUs, started by torchrun or alike."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.distributed as dist
from torch import Tensor

COMPARED = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")
"""Libraries whose versions must be equal on all nodes."""
TEXT_BYTES = 4096


class RanksError(RuntimeError):
    """The processes of a training do not fit together."""


def local_device(name: str) -> torch.device:
    """Choose this rank's device; ``auto`` takes a GPU of its own where there is one.

    Raises:
        RanksError: More ranks than GPUs on this machine, or a name that all ranks would share.
    """
    if name.startswith("cuda:"):
        raise RanksError(
            f"device = {name!r} names one GPU, and several ranks take one each; set it to 'cuda' "
            "or 'auto'"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cuda":
        return torch.device(name)
    place, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= count:
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} needs GPU {place}, and {platform.node()} has "
            f"{count}; set torchrun.processes to at most {count}, or device = 'cpu'"
        )
    return torch.device("cuda", place)


@contextmanager
def process_group(device: torch.device, timeout_seconds: float) -> Iterator[None]:
    """Be one rank, by the variables that torchrun sets, until the block ends.

    Args:
        device: Of this rank.
        timeout_seconds: How long a rank waits for the others before it gives up.

    Raises:
        RanksError: The nodes have different versions.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    device_id = device if device.type == "cuda" else None
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    try:
        check_versions(own_versions())
        yield
    finally:
        dist.destroy_process_group()


def own_versions() -> dict[str, str]:
    """Name this process's machine, Python and libraries."""
    found = {"node": platform.node(), "python": platform.python_version()}
    for name in COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def check_versions(own: Mapping[str, str]) -> None:
    """Refuse ranks whose libraries differ: their sums and files would.

    Raises:
        RanksError: Names the nodes and the versions.
    """
    everyone = [json.loads(text) for text in gathered_texts(json.dumps(dict(own)))]
    for name in own:
        versions = {one[name]: one["node"] for one in everyone}
        if name != "node" and len(versions) > 1:
            where = ", ".join(f"{what} on {node}" for what, node in sorted(versions.items()))
            raise RanksError(
                f"the nodes have different versions of {name}: {where}; install the same lock "
                "file on all of them"
            )


def gathered_texts(text: str) -> list[str]:
    """Tell every rank the text of every rank; at most TEXT_BYTES each."""
    encoded = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
    raw = text.encode()[:TEXT_BYTES]
    encoded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    parts = [torch.empty_like(encoded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, encoded)
    return [bytes(part.tolist()).rstrip(b"\0").decode() for part in parts]


def gathered(values: Tensor) -> Tensor:
    """Join 1-D tensors of any lengths from all ranks, in the order of the ranks."""
    size = dist.get_world_size()
    length = torch.tensor([len(values)], device=values.device)
    lengths = [torch.empty_like(length) for _ in range(size)]
    dist.all_gather(lengths, length)
    counts = torch.cat(lengths).tolist()
    padded = values.new_zeros(max(counts))
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
