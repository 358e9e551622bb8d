"""A PostgreSQL of the tests' own, in a temporary folder, reached by its socket."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
INITDB = shutil.which("initdb") or (str(PROGRAMS[-1]) if PROGRAMS else None)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Start a server; yields its address without a table."""
    if INITDB is None:
        pytest.skip("no PostgreSQL: apt-get install --no-install-recommends postgresql")
    # The path of a socket is short, and root may not start a server.
    folder = Path(tempfile.mkdtemp(prefix="recsys-pg-"))
    account = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    if account:
        shutil.chown(folder, "nobody")
    bin_folder, data = Path(INITDB).resolve().parent, f"{folder}/data"
    options = f"-c listen_addresses='' -c fsync=off -k {folder}"
    start = ("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")

    def run(program: str, *arguments: str) -> None:
        command = [str(bin_folder / program), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **account)

    try:
        run("initdb", "-D", data, "-U", "shop", "-A", "trust", "-E", "UTF8", "--no-sync")
        run(*start)
        try:
            yield f"postgresql://shop@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
