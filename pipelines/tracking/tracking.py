"""Send an outbox to an MLflow store in a child process with a time limit.

One is started every so often while stages run and one at their end; what is not sent by then is
sent by the next one. MLflow takes seconds to import, which only the child does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipelines.config.tracking import TrackingConfig
from pipelines.tracking.outbox import REFUSED, Outbox

LONGER = "`recsys sync --seconds 3600` sends for longer"


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """What became of an outbox's lines."""

    sent: int = 0
    waiting: int = 0
    refused: int = 0
    """Lines that the store will never take; they lie in refused.jsonl."""
    problem: str | None = None
    """Why lines are waiting."""

    def log_line(self) -> str:
        """One line for the end of a run."""
        refused = f", {self.refused} refused (see {REFUSED})" if self.refused else ""
        waiting = f", {self.waiting} waiting: {self.problem}" if self.waiting else ""
        return f"tracking: {self.sent} records sent{refused}{waiting}"


def outbox_of(workspace: Path) -> Outbox:
    """Return the outbox of a workspace."""
    return Outbox(workspace / "tracking" / "outbox")


def store_uri(config: TrackingConfig, outbox: Outbox) -> str:
    """Return the store's address; by default a database beside the outbox."""
    database = f"sqlite:///{(outbox.path.parent / 'mlflow.db').absolute()}"
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or database


def is_server(uri: str) -> bool:
    """Whether a store is reached over HTTP."""
    return urlsplit(uri).scheme in ("http", "https")


def sending_command(outbox: Outbox, config: TrackingConfig) -> list[str]:
    """Write the command of a child process that sends an outbox."""
    where = str(outbox.path.absolute())
    module = "pipelines.tracking.store.sender"
    return [sys.executable, "-m", module, where, json.dumps(asdict(config))]


def longest_sending(config: TrackingConfig) -> float:
    """Seconds after which a child that sends is killed."""
    return config.sync_seconds + 2 * config.request_seconds


def sync_outbox(outbox: Outbox, config: TrackingConfig) -> SyncResult:
    """Send what waits, in a child process that ends within the configured time.

    Never raises for what a server, a network or MLflow does: the lines wait for the next time.
    """
    if not outbox.waiting():
        return SyncResult()
    try:
        child = subprocess.run(
            sending_command(outbox, config),
            capture_output=True,
            text=True,
            timeout=longest_sending(config),
            check=False,
        )
        result = SyncResult(**json.loads(child.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        problem = f"not done in {config.sync_seconds:g} s; {LONGER}"
        result = SyncResult(waiting=outbox.num_waiting(), problem=problem)
    except (OSError, IndexError, ValueError, TypeError) as error:
        result = SyncResult(waiting=outbox.num_waiting(), problem=f"sending failed: {error}")
    return result


@contextmanager
def sending_meanwhile(outbox: Outbox, config: TrackingConfig) -> Iterator[None]:
    """Send what waits every ``live_seconds`` while the block runs, and let nothing wait for it.

    At the block's end a child that is still sending is killed: what it did not send is sent by
    the next one.
    """
    done = threading.Event()
    sending = threading.Thread(target=send_every_so_often, args=(outbox, config, done), daemon=True)
    sending.start()
    try:
        yield
    finally:
        done.set()
        sending.join()


def send_every_so_often(outbox: Outbox, config: TrackingConfig, done: threading.Event) -> None:
    """Start one child after the other until the work is done."""
    while not done.wait(config.live_seconds):
        if not outbox.num_waiting():
            continue
        try:
            child = subprocess.Popen(
                sending_command(outbox, config),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            # Too many processes or no memory: the end of the run tries again and prints it.
            continue
        with child:
            wait_or_kill(child, done, longest_sending(config))


def wait_or_kill(child: subprocess.Popen[bytes], done: threading.Event, seconds: float) -> None:
    """Let a child end by itself, unless the work is done or its time is over."""
    until = time.monotonic() + seconds
    while child.poll() is None:
        if done.wait(0.1) or time.monotonic() > until:
            child.kill()
            return
