import ctypes
from pathlib import Path

import pytest

from pipelines.engine.memory import return_memory


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)
def test_what_a_stage_freed_is_not_held_in_the_next() -> None:
    blocks = [bytearray(b"x") * 100_000 for _ in range(500)]
    held = resident_bytes()
    # The last block keeps those before it from being returned when they are freed.
    last = blocks[-1]
    blocks.clear()
    return_memory()
    assert held - resident_bytes() > 25_000_000
    assert len(last) == 100_000
