"""``make release``: the files of a release, in ``dist/release``.

    recsys_platform-0.1.0-py3-none-any.whl, recsys_platform-0.1.0.tar.gz
    sbom.cdx.json                   packages of the CPU lock with licences (CycloneDX)
    requirements-cpu.txt            the lock with each file's sha256, for this Python and system
    SHA256SUMS                      of all these: sha256sum -c SHA256SUMS

A lock with hashes is of one Python and system; run it on each that is to be had. Sign the files
with the key or the identity of whoever releases them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.release import sbom
from tests.release.wheel import ROOT, run

FOLDER = ROOT / "dist" / "release"
SUMS = "SHA256SUMS"


def build(folder: Path) -> None:
    """Build wheel and sdist with the backend that is installed."""
    for kind in ("wheel", "sdist"):
        run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)], ROOT)


def hashed(lock: Path, pip: tuple[str, ...] = (sys.executable, "-m", "pip")) -> str:
    """Return a lock with the sha256 of each package's file, as pip chooses it here.

    Raises:
        ValueError: A file of which the index says no sha256.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*pip, "install", "--dry-run", "--ignore-installed", "--no-deps", "-q"]
        run([*command, "--report", str(report), "-r", str(lock)], ROOT)
        packages = json.loads(report.read_text())["install"]
    lines = []
    for one in packages:
        about, hashes = one["metadata"], one["download_info"]["archive_info"].get("hashes", {})
        if "sha256" not in hashes:
            raise ValueError(f"the index says no sha256 of {about['name']} {about['version']}")
        pinned = f"{about['name'].lower()}=={about['version']}"
        lines.append(f"{pinned} --hash=sha256:{hashes['sha256']}\n")
    return "".join(sorted(lines))


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
        (FOLDER / "requirements-cpu.txt").write_text(hashed(ROOT / "requirements" / "cpu.txt"))
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"no release: {error}")
    write_sums(FOLDER)
    sys.stdout.write((FOLDER / SUMS).read_text())


if __name__ == "__main__":
    main()
