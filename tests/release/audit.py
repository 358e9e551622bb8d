"""Known vulnerabilities of the locked packages, asked by pip-audit.

    pip install pip-audit
    python -m tests.release.audit cpu dev

It sends names and versions of the locks to the index's vulnerability service by the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
ACCEPTED: dict[str, str] = {}
"""Id of a vulnerability that does not reach this platform, and why not."""


def ask(lock: Path, command: Sequence[str] = (sys.executable, "-m", "pip_audit")) -> list[str]:
    """Return the vulnerabilities of a lock that are not accepted, a sentence each.

    Raises:
        ValueError: pip-audit is missing, or gives no answer.
    """
    if command[-1] == "pip_audit" and find_spec("pip_audit") is None:
        raise ValueError("pip-audit is not installed: pip install pip-audit")
    options = [
        "-r",
        str(lock),
        "--no-deps",
        "--disable-pip",
        "-f",
        "json",
        "--progress-spinner=off",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise ValueError(
            f"pip-audit gave no answer about {lock.name}, so nothing is known: "
            f"{done.stderr.strip()[-500:]}"
        ) from None
    unread = [one for one in packages if "skip_reason" in one]
    missing = f"{len(unread)} of {len(packages)} packages were not checked, the first because: "
    found = [
        f"{one['name']} {one['version']} has {fault['id']}; safe: {fault['fix_versions']}"
        for one in packages
        for fault in one.get("vulns", ())
        if ACCEPTED.keys().isdisjoint([fault["id"], *fault.get("aliases", ())])
    ]
    return [missing + unread[0]["skip_reason"], *found] if unread else found


def check(names: Sequence[str]) -> str:
    """Check locks.

    Raises:
        ValueError: Lists what is vulnerable, or could not be checked.
    """
    faults = [fault for name in names for fault in ask(ROOT / "requirements" / f"{name}.txt")]
    if faults:
        raise ValueError("; ".join(faults))
    return f"no known vulnerability in {', '.join(names)}; {len(ACCEPTED)} accepted"


if __name__ == "__main__":
    sys.stdout.write(f"{check(sys.argv[1:] or ['cpu'])}\n")
