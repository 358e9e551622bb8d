"""Run the tests marked ``numerics`` as other processors would: ``python -m tests.numerics [all]``.

Instruction sets and numbers of threads change the order of sums, and with it their last bits. Each
configuration is a process of its own, because the libraries read it when they are loaded. The
one that differs most from ``make test`` (this processor's own instructions, one thread) runs by
default; ``all`` runs every set of instructions with one thread and with two, one after the other.
"""

import os
import subprocess
import sys
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
FURTHEST = (("without AVX", 2),)


def instructions_here() -> list[str]:
    """List the instruction sets to run with: a machine cannot run those that it lacks."""
    processor = Path("/proc/cpuinfo")
    has_avx512 = processor.exists() and " avx512f" in processor.read_text()
    return [name for name in VALUES if name != "AVX-512" or has_avx512]


def marked_files() -> list[str]:
    """Files with marked tests, so that no other has to be collected."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "mark.numerics" in path.read_text(encoding="utf-8")]


def run(instructions: str, num_threads: int) -> "subprocess.CompletedProcess[str]":
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
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *marked_files()],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def failed(instructions: str, num_threads: int) -> bool:
    """Run one configuration; print how it ended, and all of what failed."""
    done = run(instructions, num_threads)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    print(f"numerics, {instructions}, {num_threads} threads: {last}", flush=True)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode != 0


if __name__ == "__main__":
    chosen = FURTHEST
    if sys.argv[1:] == ["all"]:
        chosen = tuple((name, threads) for threads in (1, 2) for name in instructions_here())
    # All of them, whatever the first says.
    ended = [failed(*one) for one in chosen]
    sys.exit(any(ended))
