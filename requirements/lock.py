"""Resolve requirements/<name>.in into requirements/<name>.txt, every package at one version.

Usage: python requirements/lock.py cpu dev gpu airflow

The lock is installed with `pip install --no-deps -r`, so that nothing outside it comes in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

# Installed as they are, whatever their metadata asks for.
PINNED_WITHOUT_METADATA = {
    "cpu": [
        'fbgemm-gpu-cpu==1.8.0; sys_platform == "linux"',
        'torchrec==1.8.0; sys_platform == "linux"',
    ],
    "gpu": ["fbgemm-gpu==1.6.0", "torchrec==1.6.1", "iopath==0.1.10"],
    "dev": [],
    "airflow": [],
}
LINUX_ONLY = {"triton"}
# Locks that must agree with another one.
CONSTRAINED_BY = {"dev": "cpu"}
GPU_TARGET = [
    "--python-version=3.12",
    "--implementation=cp",
    "--only-binary=:all:",
    *(f"--platform=manylinux_2_{n}_x86_64" for n in range(39, 4, -1)),
    *(f"--platform=manylinux{n}_x86_64" for n in ("2014", "2010", "1")),
]


def resolve(name: str) -> dict[str, str]:
    """Ask pip which version of each package ``<name>.in`` needs."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q"]
    if name in CONSTRAINED_BY:
        command += ["-c", str(HERE / f"{CONSTRAINED_BY[name]}.txt")]
    with tempfile.TemporaryDirectory() as folder:
        if name == "gpu":
            command += [*GPU_TARGET, f"--target={folder}"]
        report = Path(folder) / "report.json"
        command += ["--report", str(report), "-r", str(HERE / f"{name}.in")]
        subprocess.run(command, check=True)
        installed = json.loads(report.read_text())["install"]
    found = [entry["metadata"] for entry in installed]
    # The build's label (+cpu, +cu130) is the index's business, not the lock's.
    versions = {entry["name"]: entry["version"].split("+")[0] for entry in found}
    return {name.lower().replace("_", "-"): version for name, version in versions.items()}


def lock(name: str) -> None:
    """Write ``<name>.txt``."""
    versions = resolve(name)
    if name in CONSTRAINED_BY:
        other = (HERE / f"{CONSTRAINED_BY[name]}.txt").read_text()
        known = {line.split("==")[0] for line in other.splitlines() if "==" in line}
        versions = {package: v for package, v in versions.items() if package not in known}
    lines = [f"# Written by `python requirements/lock.py {name}`; edit {name}.in instead."]
    for package, version in sorted(versions.items()):
        marker = '; sys_platform == "linux"' if package in LINUX_ONLY else ""
        lines.append(f"{package}=={version}{marker}")
    lines += PINNED_WITHOUT_METADATA[name]
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    names = sys.argv[1:]
    if not names or set(names) - set(PINNED_WITHOUT_METADATA):
        sys.exit(f"usage: python requirements/lock.py {' '.join(PINNED_WITHOUT_METADATA)}")
    for each in names:
        lock(each)
