"""``make release``: the files of a release, in ``dist/release``.

recsys_platform-0.1.0-py3-none-any.whl, recsys_platform-0.1.0.tar.gz
sbom.cdx.json                   packages of the CPU lock with licences (CycloneDX)
requirements-py312-x86_64.txt   locks with each file's sha256, for each Python and processor
SHA256SUMS                      of all these: sha256sum -c SHA256SUMS
SHA256SUMS.sigstore.json        its signature, if CI gives an identity and sigstore is installed

It also builds the images if Docker or Podman is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.release import sbom
from tests.release.wheel import ROOT, run

FOLDER = ROOT / "dist" / "release"
SUMS = "SHA256SUMS"
PYTHONS = ("3.11", "3.12", "3.13")
PROCESSORS = ("x86_64", "aarch64")
IMAGES = {"recsys": "deploy/Dockerfile", "recsys-gpu": "deploy/Dockerfile.gpu"}
IDENTITIES = ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SIGSTORE_ID_TOKEN")
"""Variables by which GitHub and GitLab give a job an identity."""


def build(folder: Path) -> None:
    """Build wheel and sdist with the backend that is installed."""
    for kind in ("wheel", "sdist"):
        run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)], ROOT)


def hashed(lock: Path, *target: str) -> str:
    """Return a lock with the sha256 of each package's file, as pip chooses it.

    Args:
        target: Options of pip that name another Python or system than this.

    Raises:
        ValueError: A package that is not to be had, or of whose file the index says no sha256.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q"]
        command += ["--no-deps", *target, f"--target={folder}", "--report", str(report)]
        run([*command, "-r", str(lock)], ROOT)
        packages = json.loads(report.read_text())["install"]
    lines = []
    for one in packages:
        about, hashes = one["metadata"], one["download_info"]["archive_info"].get("hashes", {})
        if "sha256" not in hashes:
            raise ValueError(f"the index says no sha256 of {about['name']} {about['version']}")
        pinned = f"{about['name'].lower()}=={about['version']}"
        lines.append(f"{pinned} --hash=sha256:{hashes['sha256']}\n")
    return "".join(sorted(lines))


def write_locks(folder: Path, lock: Path) -> None:
    """Write a lock with hashes for each Python and processor that is supported."""
    for python in PYTHONS:
        for processor in PROCESSORS:
            systems = [f"manylinux_2_{n}_{processor}" for n in range(39, 4, -1)]
            systems += [f"manylinux{n}_{processor}" for n in ("2014", "2010", "1")]
            target = [f"--platform={one}" for one in systems]
            text = hashed(lock, f"--python-version={python}", "--implementation=cp", *target)
            name = f"requirements-py{python.replace('.', '')}-{processor}.txt"
            (folder / name).write_text(text)


def sign(folder: Path, command: tuple[str, ...] = (sys.executable, "-m", "sigstore")) -> str:
    """Sign the digests with the identity of a CI job; return what was done."""
    if not any(map(os.environ.get, IDENTITIES)):
        return f"not signed: no identity in the environment ({' or '.join(IDENTITIES)})"
    run([*command, "sign", f"--bundle={SUMS}.sigstore.json", SUMS], folder)
    return f"signed: {SUMS}.sigstore.json"


def build_images(version: str) -> str:
    """Build the images by Docker or Podman if one is installed; return what was done."""
    engine = shutil.which("docker") or shutil.which("podman")
    if engine is None:
        return "no images: neither docker nor podman is installed"
    for name, file in IMAGES.items():
        run([engine, "build", "-q", "-f", file, "-t", f"{name}:{version}", "."], ROOT)
    return f"images of version {version}: {', '.join(IMAGES)}"


def write_sums(folder: Path) -> None:
    """Write the digests of a folder's files, as sha256sum reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files]
    (folder / SUMS).write_text("".join(lines))


def main() -> None:
    """Build everything, and list it."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        build(FOLDER)
        sbom.write(FOLDER / "sbom.cdx.json")
        write_locks(FOLDER, ROOT / "requirements" / "cpu.txt")
        write_sums(FOLDER)
        signed = sign(FOLDER)
        images = build_images(next(FOLDER.glob("*.whl")).name.split("-")[1])
    except ValueError as error:
        sys.exit(f"no release: {error}")
    sys.stdout.write(f"{(FOLDER / SUMS).read_text()}{signed}\n{images}\n")


if __name__ == "__main__":
    main()
