import ctypes
import time
from pathlib import Path

import pytest

from pipelines.engine.memory import returning_memory

NEEDS_TRIM = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@NEEDS_TRIM
def test_what_a_stage_frees_is_returned_while_it_runs():
    with returning_memory(every_seconds=0.01):
        blocks = [bytearray(b"x") * 100_000 for _ in range(500)]
        held, last = resident_bytes(), blocks[-1]
        blocks.clear()
        until = time.monotonic() + 60.0
        while held - resident_bytes() < 25_000_000:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert len(last) == 100_000
