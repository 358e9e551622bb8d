"""A PostgreSQL of the tests' own, in a temporary folder, reached by its socket."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))
INITDB = shutil.which("initdb") or (PROGRAMS[-1] if PROGRAMS else None)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Start a server as nobody, because root may not; yield its address without a table."""
    assert INITDB is not None
    # The path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="recsys-pg-"))
    account: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    if account:
        shutil.chown(folder, "nobody")
    programs, data = Path(INITDB).resolve().parent, f"{folder}/data"
    options = f"-c listen_addresses='' -c fsync=off -k {folder}"
    start = ("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
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
