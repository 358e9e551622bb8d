"""The wheel holds the four packages and nothing else, and recsys needs three libraries only."""

import email
import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("recsys", "features", "pipelines", "serving")
MAX_WHEEL_BYTES = 5_000_000
NEEDED_BY_RECSYS = ("torch", "numpy", "safetensors")

IMPORT_ALL = """
import importlib, importlib.abc, json, pkgutil, sys

blocked = set(json.loads(sys.stdin.read()))

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
import recsys

assert recsys.__file__.startswith(sys.argv[1]), recsys.__file__
modules = [module.name for module in pkgutil.walk_packages(recsys.__path__, "recsys.")]
for name in modules:
    # The only files that may import Triton at their top; op.py imports them where it calls them.
    if not name.rpartition(".")[2].startswith("triton_"):
        importlib.import_module(name)
print(json.dumps({"modules": modules, "loaded": sorted(blocked & set(sys.modules))}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build with the backend that is installed: no isolation, so no network."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = folder.iterdir()
    return built


def test_wheel_holds_the_four_packages_and_only_them(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    (metadata,) = tops - set(PACKAGES)
    assert re.fullmatch(r"recsys_platform-[0-9.]+\.dist-info", metadata)
    assert tops == {*PACKAGES, metadata}
    assert [name for name in names if name.endswith((".pyc", ".so")) or "/tests/" in name] == []


def test_wheel_holds_every_module(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    written = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert packed == written


def tracked_files():
    """Files of the packages that a clone has."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout: what belongs to the packages is not known")
    return set(listed.stdout.splitlines())


def test_wheel_holds_every_page_template_preset_and_kernel_source(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith(PACKAGES)}
    left_out = tracked_files() - packed
    assert {name for name in left_out if not name.endswith((".test.ts", ".gitignore"))} == set()
    assert "serving/web/static/index.html" in packed
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed


def test_wheel_is_small_and_holds_no_test(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    assert [name for name in names if name.match("test_*.py") or ".test" in name.suffixes] == []
    assert {name.suffix for name in names} & {".csv", ".parquet", ".npy", ".safetensors"} == set()


WITHOUT_HEAVY = """
import sys
import recsys
from pipelines.cli.main import app
try:
    app({arguments})
except SystemExit as end:
    assert not end.code, end.code
heavy = {"torch", "polars", "mlflow", "faiss", "fastapi", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("arguments", ["--help", "--version"])
def test_help_and_version_come_without_a_heavy_library(arguments):
    script = WITHOUT_HEAVY.replace("{arguments}", repr([arguments]))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if arguments == "--version":
        assert re.fullmatch(r"recsys \d+\.\d+\.\d+\S*\n", done.stdout)
    else:
        assert "--version" in done.stdout


def test_every_extra_named_by_another_is_declared(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    declared = set(metadata.get_all("Provides-Extra"))
    named = re.findall(r"recsys-platform\[([\w,-]+)\]", " ".join(metadata.get_all("Requires-Dist")))
    assert {"gpu", "serving"} <= declared
    assert {one for names in named for one in names.split(",")} <= declared


def test_wheel_brings_the_command_and_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "recsys = pipelines.cli.main:app" in archive.read(entry_points).decode()
        assert [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]


def closure(names):
    """Distributions that the given ones require, without extras, as far as they are installed."""
    found, waiting = set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requirements = distribution(name).requires or []
        except ModuleNotFoundError:
            continue
        found.add(name)
        waiting += [
            re.match(r"[\w.-]+", line).group() for line in requirements if "extra ==" not in line
        ]
    return found


def test_recsys_imports_with_torch_numpy_and_safetensors_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    allowed = closure(NEEDED_BY_RECSYS)
    blocked = [
        module
        for module, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & allowed
        and module not in PACKAGES
    ]
    for heavy in ("polars", "mlflow", "faiss", "fastapi", "torchrec", "transformers"):
        assert heavy in blocked or heavy not in packages_distributions()
    child = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALL, str(tmp_path)],
        input=json.dumps(blocked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    answer = json.loads(child.stdout.splitlines()[-1])
    assert answer["loaded"] == []
    assert "recsys.layers.embedding.collection" in answer["modules"]
