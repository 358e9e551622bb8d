"""The wheel as a stranger installs it: built, in a fresh environment, used outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 5_000_000
MAX_IMPORT_SECONDS = 0.5
IMPORT = """
import sys, time
begin = time.perf_counter()
import recsys
print(time.perf_counter() - begin, "torch" in sys.modules, recsys.__file__)
"""
READY_SECONDS = 120.0


def run(command: list[str], folder: Path) -> str:
    """Run a command away from the checkout; return what it prints.

    Raises:
        ValueError: It failed; the end of what it wrote.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        wrote = f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        raise ValueError(f"{' '.join(command)} ended with {done.returncode}:\n{wrote}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build the wheel with the backend that is installed; return its path.

    Raises:
        ValueError: It is larger than it may be.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (wheel,) = folder.glob("*.whl")
    if (size := wheel.stat().st_size) > MAX_WHEEL_BYTES:
        raise ValueError(f"{wheel.name} has {size:,} bytes; at most {MAX_WHEEL_BYTES:,}")
    return wheel


def install(wheel: Path, python: str, folder: Path, lock: Path) -> Path:
    """Install the wheel into a new environment by its metadata; return its ``bin``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([python, "-m", "venv", "environment"], folder)
    programs = folder / "environment" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "-q", "-c", str(lock), f"{wheel}[serving]"], folder)
    run([*pip, "check"], folder)
    return programs


def check_import(programs: Path, folder: Path) -> str:
    """Import the package as installed; return what was measured.

    Raises:
        ValueError: It is not the installed one, loads torch, or takes too long.
    """
    tries = [run([str(programs / "python"), "-c", IMPORT], folder).split() for _ in range(5)]
    seconds = statistics.median(float(one[0]) for one in tries)
    _, torch, place = tries[0]
    if not Path(place).is_relative_to(folder) or torch != "False" or seconds > MAX_IMPORT_SECONDS:
        raise ValueError(
            f"import recsys: {seconds:.2f} s (at most {MAX_IMPORT_SECONDS}), torch loaded: {torch} "
            f"(must be False), from {place} (must be below {folder})"
        )
    return f"import recsys {1000 * seconds:.1f} ms without torch"


@contextmanager
def served(recsys: str, bundles: Path, folder: Path) -> Iterator[int]:
    """Serve a folder of bundles; yields the port once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [recsys, "serve", str(bundles), "--port", str(port)]
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            end = time.monotonic() + READY_SECONDS
            while not is_ready(port):
                if server.poll() is not None or time.monotonic() > end:
                    text = (folder / "serve.log").read_text(errors="replace")[-1500:]
                    raise ValueError(f"recsys serve is not ready:\n{text}")
                time.sleep(0.2)
            yield port
        finally:
            server.terminate()
            server.wait(60)


def is_ready(port: int) -> bool:
    """Whether a server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def check_serving(recsys: str, bundles: Path, folder: Path) -> str:
    """Answer a request and the page from the installed package; return what came.

    Raises:
        ValueError: A list or a file of the page is empty.
    """
    with served(recsys, bundles, folder) as port:
        home = f"http://127.0.0.1:{port}"
        body = json.dumps({"user_id": "1", "k": 5}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{home}/v1/recommend", body, headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            items = json.load(reply)["items"]
        sizes = {}
        for path in ("/", "/openapi.json"):
            with urllib.request.urlopen(home + path, timeout=30) as reply:
                sizes[path] = len(reply.read())
    if len(items) != 5 or min(sizes.values()) < 500:
        raise ValueError(f"served {len(items)} of 5 items, {sizes} bytes of the pages")
    return "served a list, the page and openapi.json"


def check(python: str, folder: Path) -> list[str]:
    """Build, install and use the wheel; return a line for each thing that held.

    Raises:
        ValueError: One did not hold.
    """
    begin = time.perf_counter()
    wheel = build(ROOT / "dist" / "wheel")
    lines = [f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB"]
    programs = install(wheel, python, folder, ROOT / "requirements" / "cpu.txt")
    lines.append(f"installed with extra serving in {time.perf_counter() - begin:.0f} s")
    recsys = str(programs / "recsys")
    lines.append(run([recsys, "--version"], folder).strip())
    run([recsys, "--help"], folder)
    lines.append(check_import(programs, folder))
    begin = time.perf_counter()
    run([recsys, "demo", "demo", "--quiet"], folder)
    lines.append(f"demo run from the wheel in {time.perf_counter() - begin:.0f} s")
    if not (folder / "demo" / "report" / "report.html").is_file():
        raise ValueError(f"recsys demo wrote no report below {folder / 'demo'}")
    lines.append(check_serving(recsys, folder / "demo" / "bundles", folder))
    return lines
