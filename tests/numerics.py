"""Run the tests marked ``numerics`` as other processors would: ``python -m tests.numerics``.

Instruction sets and numbers of threads change the order of sums, and with it their last bits. Each
configuration is a process of its own, because the libraries read it when they are loaded. Those of
one thread run side by side.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "FAISS_SIMD_LEVEL",
)
"""Of torch, MKL and oneDNN in torch, OpenBLAS in numpy, scipy and faiss, and faiss itself."""
VALUES = {
    "AVX-512": ("avx512", "AVX512", "AVX512_CORE", "SkylakeX", "AVX512"),
    "AVX2": ("avx2", "AVX2", "AVX2", "Haswell", "AVX2"),
    "without AVX": ("default", "SSE4_2", "SSE41", "Nehalem", "NONE"),
}


def instructions_of_this_machine() -> list[str]:
    """List the instruction sets to run with: a machine cannot run those that it lacks."""
    processor = Path("/proc/cpuinfo")
    has_avx512 = processor.exists() and " avx512f" in processor.read_text()
    return [name for name in VALUES if name != "AVX-512" or has_avx512]


def marked_files() -> list[str]:
    """Files with marked tests, so that no other has to be collected."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "mark.numerics" in path.read_text(encoding="utf-8")]


def started(instructions: str, num_threads: int) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        **dict(zip(VARIABLES, VALUES[instructions], strict=True)),
        "OMP_NUM_THREADS": str(num_threads),
    }
    options = [
        "-q",
        "-m",
        "numerics and not slow and not gpu",
        "-p",
        "no:cacheprovider",
        "--tb=short",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *marked_files()],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def failed(names: list[tuple[str, int]]) -> bool:
    """Run configurations at once; print how each ended, and all of what failed."""
    began = time.monotonic()
    failures = 0
    for (instructions, num_threads), child in [(name, started(*name)) for name in names]:
        output, _ = child.communicate()
        last = output.strip().splitlines()[-1] if output.strip() else "no output"
        print(f"numerics, {instructions}, {num_threads} threads: {last}", flush=True)
        if child.returncode != 0:
            print(output, flush=True)
            failures += 1
    print(f"numerics: {time.monotonic() - began:.0f} s", flush=True)
    return failures > 0


if __name__ == "__main__":
    sets = instructions_of_this_machine()
    alone = [(name, 1) for name in sets]
    rounds = [alone[-2:], alone[:-2], *([(name, 2)] for name in sets)]
    # All of them, whatever the first says.
    ended = [failed(names) for names in rounds]
    sys.exit(any(ended))
