"""Make the environments that peers run in.

    python -m tests.benchmarks.peers.environments [rectools ...] [--folder FOLDER]

Each is a virtual environment of its own below ``tests/benchmarks/.peers`` (ignored by git), with
the versions that results were measured with. Torch is whatever build the package index gives for
the version; a CPU build is enough.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.peers.run import ENVIRONMENTS


class Environment(NamedTuple):
    """What is installed for a peer, and by which Python."""

    python: str
    packages: tuple[str, ...]


ENVIRONMENTS_OF_PEERS = {
    "rectools": Environment(
        "python3.11",
        (
            "rectools[torch]==0.19.0",
            "implicit==0.7.3",
            "optuna==4.9.0",
            "torch==2.13.0",
            "pytorch-lightning==2.5.2",
            "numpy==1.26.4",
            "pandas==2.3.3",
            "scipy==1.17.1",
            "safetensors",
        ),
    )
}


def commands(name: str, folder: Path) -> list[list[str]]:
    """List the commands that make an environment."""
    environment = ENVIRONMENTS_OF_PEERS[name]
    where = folder / name
    install = [str(where / "bin" / "python"), "-m", "pip", "install", "-q"]
    return [[environment.python, "-m", "venv", str(where)], [*install, *environment.packages]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and make them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(ENVIRONMENTS_OF_PEERS))
    parser.add_argument("--folder", type=Path, default=ENVIRONMENTS)
    options = parser.parse_args(arguments)
    names = options.names or list(ENVIRONMENTS_OF_PEERS)
    if wrong := set(names) - set(ENVIRONMENTS_OF_PEERS):
        raise SystemExit(
            f"no environment is called {', '.join(sorted(wrong))}; there are "
            f"{', '.join(ENVIRONMENTS_OF_PEERS)}"
        )
    for name in names:
        for command in commands(name, options.folder.resolve()):
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
