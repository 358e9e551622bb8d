"""``make release-check``: everything that must hold before a version is released.

    python -m tests.release.check           ten minutes; needs a package index
    python -m tests.release.check --quick   without the audit and the wheel's own run
    python -m tests.release.check --python python3.12

Each check says what held or what to do; the last line is the verdict, and the exit code 1 names
what failed. The wheel and the SBOM stay in ``dist/``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.release import audit, changelog, licences, sbom, wheel

ROOT = Path(__file__).parents[2]
Check = Callable[[], str]


def check_changelog() -> str:
    """Hold version and changelog to each other.

    Raises:
        ValueError: Says each fault.
    """
    if wrong := changelog.read_tree(releasing=True):
        raise ValueError("; ".join(wrong))
    return "version and headings agree"


def check_licences() -> str:
    """Hold docs/licences.md to what is installed.

    Raises:
        ValueError: A licence is unknown, not permitted, or the page is of other packages.
    """
    found = licences.of_cpu()
    if bad := licences.refused(found):
        raise ValueError(f"not permitted beside Apache-2.0: {bad}")
    if licences.PAGE.read_text(encoding="utf-8") != licences.page():
        raise ValueError("docs/licences.md is of other packages: python -m tests.release.licences")
    return f"{len(found)} packages, all permitted; docs/licences.md is current"


def check_sbom() -> str:
    """Write the bill of materials."""
    path = ROOT / "dist" / "sbom.cdx.json"
    return f"{sbom.write(path)} packages in {path.relative_to(ROOT)}"


def check_docs() -> str:
    """Build the documentation strictly.

    Raises:
        ValueError: The end of what the build wrote.
    """
    target = ROOT / "dist" / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(target)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"mkdocs build --strict: {(done.stdout + done.stderr)[-1500:]}")
    return f"built strictly, {sum(1 for _ in target.rglob('*.html'))} pages"


def check_tree() -> str:
    """Ask git whether what is checked is what is committed.

    Raises:
        ValueError: Names the files that differ.
    """
    command = ["git", "status", "--porcelain"]
    changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changed:
        raise ValueError(f"commit or remove first: {' '.join(changed.split()[1::2])}")
    return "nothing uncommitted"


def check_wheel(python: str) -> str:
    """Install and use the wheel in a fresh environment."""
    folder = ROOT / "dist" / "fresh"
    try:
        return "; ".join(wheel.check(python, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the checks in order, the quick ones first; end with 1 if one fails."""
    parser = argparse.ArgumentParser(description="Everything that must hold before a release.")
    parser.add_argument("--quick", action="store_true", help="Without a network.")
    parser.add_argument("--python", default=sys.executable, help="For the fresh environment.")
    given = parser.parse_args()
    checks: dict[str, Check] = {
        "tree": check_tree,
        "changelog": check_changelog,
        "licences": check_licences,
        "sbom": check_sbom,
        "docs": check_docs,
    }
    if not given.quick:
        checks["audit"] = partial(audit.check, ["cpu"])
        checks["wheel"] = partial(check_wheel, given.python)
    failed = []
    for name, check in checks.items():
        begin = time.perf_counter()
        try:
            status, line = "ok", check()
        except ValueError as error:
            status, line = "FAILED", str(error)
            failed.append(name)
        seconds = time.perf_counter() - begin
        sys.stdout.write(f"{status:6} {name:9} {seconds:5.0f} s  {line}\n")
        sys.stdout.flush()
    if failed:
        sys.exit(f"not ready to release: {', '.join(failed)}")
    sys.stdout.write("ready to release\n")


if __name__ == "__main__":
    main()
