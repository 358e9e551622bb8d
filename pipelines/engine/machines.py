"""One training on the ranks of several machines that see one workspace at one path.

The first machine, which runs the command, announces each launch; on each other ``join`` waits for
launches and starts its share of the ranks by the same launcher. Who joined and what became of its
ranks is said by files, so that one machine can tell of all in one error:

    <workspace>/launch.json          what is being launched; touched every second while it is
    <launch folder>/machine-1.json   machine 1 has joined
    <launch folder>/left-1.json      its ranks have ended; exit codes of those that failed
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.engine.errors import RankLostError
from recsys.data.durable import write_durably

WORK = "pipelines.cli.rank"
"""Module that is one rank; above this room, because it knows all stages."""
ANNOUNCED = "launch.json"
JOINED, LEFT = "machine-{}.json", "left-{}.json"
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_LEAVE = 20.0
"""How long a machine whose ranks lost the others' may take to say so."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Ranks that are started together."""

    id: str
    stage: str
    folder: str
    """Of the launch, at the same path on all machines."""
    processes: int
    """Ranks of each machine."""
    machines: int = 1
    address: str | None = None
    """Where the first machine is reached, ``host:port``; None for one machine."""
    wait_seconds: float = 600.0

    @property
    def is_local(self) -> bool:
        """Whether ranks need no network."""
        host = (self.address or LOOPBACK[0]).rpartition(":")[0] or LOOPBACK[0]
        return self.machines == 1 or host in LOOPBACK


class Failure(NamedTuple):
    """A rank that failed."""

    code: int
    """Exit code; less than 0: a signal."""
    process: int
    host: str


class Machine(NamedTuple):
    """One that joined, or none yet."""

    number: int
    host: str
    """Empty before it joins."""


def start(launch: Launch, machine: int = 0) -> dict[int, Failure]:
    """Start a machine's ranks and wait for them.

    Returns:
        The ranks that failed first; empty when all are done.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    meeting: dict[str, Any] = (
        {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
        if launch.machines == 1
        else {
            # Ranks of the first machine come first: it writes the artefact and shows progress.
            "rdzv_backend": "static",
            "rdzv_endpoint": str(launch.address),
            "rdzv_configs": {"rank": machine, "timeout": int(launch.wait_seconds)},
        }
    )
    config = LaunchConfig(
        min_nodes=launch.machines,
        max_nodes=launch.machines,
        nproc_per_node=launch.processes,
        run_id=launch.id,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=launch.folder),
        **meeting,
    )
    with quiet_launcher(local=launch.is_local):
        try:
            elastic_launch(config, sys.executable)("-m", WORK, launch.folder)
        except ChildFailedError as error:
            return {
                rank: Failure(failure.exitcode, failure.pid, platform.node())
                for rank, failure in error.failures.items()
            }
    return {}


@contextmanager
def quiet_launcher(*, local: bool) -> Iterator[None]:
    """Leave out the launcher's own log: what went wrong is said in one sentence."""
    loggers = [
        logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.distributed")
    ]
    levels = [one.level for one in loggers]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    if sys.platform == "linux" and local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "SignalException":
            number = int(getattr(error, "sigval", signal.SIGTERM))
            if number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + number) from None
        raise
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def announced(workspace: Path, launch: Launch) -> Iterator[None]:
    """Let other machines join a launch until the block ends; wait until they have.

    Raises:
        RankLostError: Some did not join in time.
    """
    if launch.machines == 1:
        yield
        return
    path, done = workspace / ANNOUNCED, threading.Event()
    write_durably(path, json.dumps(asdict(launch)))

    def touch() -> None:
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            with suppress(OSError):
                path.touch()

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        wait_for_others(launch)
        yield
    finally:
        done.set()
        thread.join()
        path.unlink(missing_ok=True)


def others(launch: Launch) -> list[Machine]:
    """List the machines beside the first, with their hosts where they joined."""
    found = []
    for number in range(1, launch.machines):
        document = read_document(Path(launch.folder) / JOINED.format(number))
        found.append(Machine(number, str(document.get("host", ""))))
    return found


def wait_for_others(launch: Launch) -> None:
    """Wait until all machines have joined.

    Raises:
        RankLostError: Names those that did not in ``wait_seconds``.
    """
    until = time.monotonic() + launch.wait_seconds
    while missing := [one.number for one in others(launch) if not one.host]:
        if time.monotonic() > until:
            first = missing[0]
            raise RankLostError(
                f"{launch.machines - len(missing)} of {launch.machines} machines are here for "
                f"stage {launch.stage} after {launch.wait_seconds:g} s; missing: "
                f"{', '.join(map(str, missing))}. On machine {first} run recsys join WORKSPACE "
                f"--machine {first}, with the workspace at the same path, or set "
                "torchrun.machines lower"
            )
        time.sleep(SECONDS_BETWEEN_LOOKS / 4)


def failures_elsewhere(launch: Launch) -> tuple[dict[int, Failure], list[Machine]]:
    """Read what became of the other machines' ranks, once something failed here.

    Returns:
        Failed ranks, and machines that said nothing in time.
    """
    until, failures, silent = time.monotonic() + SECONDS_TO_LEAVE, {}, []
    for machine in others(launch):
        path = Path(launch.folder) / LEFT.format(machine.number)
        while not path.exists() and time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_LOOKS / 4)
        if not path.exists():
            silent.append(machine)
        for rank, values in read_document(path).items():
            failures[int(rank)] = Failure(*values)
    return failures, silent


def join(
    workspace: Path, machine: int, say: Callable[[str], None], idle_seconds: float = 0.0
) -> None:
    """Start this machine's ranks of every launch that a workspace announces, until interrupted.

    Args:
        workspace: Of the run, as the first machine sees it.
        machine: Number of this one, from 1.
        say: Shows a line.
        idle_seconds: Ends after so long without a launch; 0 never does.
    """
    joined, idle_since = "", time.monotonic()
    touched: tuple[str, int] = ("", 0)
    while not idle_seconds or time.monotonic() - idle_since < idle_seconds:
        path = workspace / ANNOUNCED
        document = read_document(path)
        at = path.stat().st_mtime_ns if document and path.exists() else 0
        before, touched = touched, (str(document.get("id", "")), at)
        # What nobody touches was left by a command that was killed.
        is_live = before[0] == touched[0] and before[1] != at
        if document and document["id"] != joined and is_live:
            launch = Launch(**document)
            joined = launch.id
            if machine < launch.machines:
                take_part(launch, machine, say)
            else:
                say(f"stage {launch.stage} runs on {launch.machines} machines; this is {machine}")
            idle_since = time.monotonic()
        time.sleep(SECONDS_BETWEEN_LOOKS / 2)


def take_part(launch: Launch, machine: int, say: Callable[[str], None]) -> None:
    """Start this machine's ranks of one launch, and write down how they ended."""
    folder = Path(launch.folder)
    first = machine * launch.processes
    say(f"stage {launch.stage}: ranks {first} to {first + launch.processes - 1}")
    write_durably(folder / JOINED.format(machine), json.dumps({"host": platform.node()}))
    try:
        failures = start(launch, machine)
    except Exception as error:  # of the launcher: the first machine does not answer, say
        say(f"stage {launch.stage}: {str(error).splitlines()[0]}")
        failures = {}
    with suppress(OSError):  # the first machine may have tidied up
        write_durably(folder / LEFT.format(machine), json.dumps(failures))
    if failures:
        say(f"stage {launch.stage}: ranks {', '.join(map(str, sorted(failures)))} failed")
    else:
        say(f"stage {launch.stage}: done")


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON file; empty where there is none, or it is being replaced."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return document
