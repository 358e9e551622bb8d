"""Processes of a server: a zygote imports, loaders load a bundle, workers answer.

    front  --starts-->  zygote   imports torch and this package once
    zygote --forks-->   loader   loads, verifies and tries one bundle, then waits
    zygote --forks-->   request log   writes served lists into the online store
    loader --forks-->   worker   answers the jobs of one socket
    loader --forks-->   loader   of a delta of its release, or of other adapters

A fork shares what its parent holds, so that further workers cost little memory and no time, and a
bundle that was replaced gives back all of its memory with its processes. Every process has one
socket to the front and ends when that is closed; signals of a terminal or a service manager reach
the front alone, which lets running jobs finish.

A process is ordered about by messages of JSON, one a datagram, on a ``SOCK_SEQPACKET`` socket.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path
from resource import getpagesize
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from serving.bundle.load import Bundle
    from serving.recommend import Recommender
    from serving.settings import Settings

MAX_MESSAGE = 1 << 20
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send_message(to: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    """Send a message, and with it a descriptor."""
    socket.send_fds(to, [orjson.dumps(message)], [] if descriptor is None else [descriptor])


def receive_message(source: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """Wait for a message and the descriptor with it; None once the other end is closed."""
    data, descriptors, _, _ = socket.recv_fds(source, MAX_MESSAGE, 1)
    if not data:
        return None
    return orjson.loads(data), descriptors[0] if descriptors else None


def run_zygote(control: socket.socket) -> None:
    """Fork a process for each message, with its socket.

    ``{"settings": {...}, "target": path}`` is for a loader, without target for the request log.
    """
    for number in FORWARDED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _reap(lambda *_: None)
    # Everything that a request needs; all processes share these imports.
    import torch

    import serving.online.request_log
    import serving.server.worker
    from serving.log import log_to_stderr

    log_to_stderr()
    torch.set_num_threads(1)
    serving.server.worker.prepare()
    gc.collect()
    gc.freeze()
    send_message(control, {"imported": True})
    while (received := receive_message(control)) is not None:
        message, descriptor = received
        assert descriptor is not None
        if os.fork() == 0:
            control.close()
            process = run_loader if "target" in message else _run_request_log
            _run(process, socket.socket(fileno=descriptor), message)
        os.close(descriptor)


def _run_request_log(source: socket.socket, message: dict[str, Any]) -> None:
    from serving.online.opening import open_store
    from serving.online.request_log import run_request_log
    from serving.settings import Settings

    settings = Settings.from_json(message["settings"])
    store = open_store(settings.store_url, timeout_ms=settings.store_timeout_ms)
    assert store is not None
    run_request_log(source, store)


def run_loader(
    control: socket.socket, message: dict[str, Any], loaded: Bundle | None = None
) -> None:
    """Load a bundle, say what it is or why it is refused, and fork workers and its successors.

    Args:
        loaded: What the process holds of the same release.
    """
    from serving.online.opening import import_store
    from serving.recommend import Recommender
    from serving.server.worker import run_worker
    from serving.settings import Settings

    send_message(control, {"pid": os.getpid()})
    settings = Settings.from_json(message["settings"])
    try:
        recommender = Recommender.load(message["target"], settings, loaded=loaded).warm()
        _load_arms(recommender, settings)
    except Exception as error:
        # Whatever is wrong with a bundle, the front has to hear of it.
        known = isinstance(error, ValueError)
        send_message(control, {"refused": str(error) if known else repr(error)})
        return
    import_store(settings.store_url)
    gc.collect()
    gc.freeze()
    _reap(lambda pid, status: send_message(control, {"ended": pid, "status": status}))
    send_message(control, {"loaded": recommender.description()})
    while (received := receive_message(control)) is not None:
        message, descriptor = received
        assert descriptor is not None
        pid = os.fork()
        if pid == 0 and "target" in message:
            control.close()
            _run(run_loader, socket.socket(fileno=descriptor), message, recommender.bundle)
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            jobs = socket.socket(fileno=descriptor)
            _run(run_worker, jobs, recommender, settings)
        if "target" not in message:
            send_message(control, {"worker": pid})
        os.close(descriptor)


def _load_arms(recommender: Recommender, settings: Settings) -> None:
    """Load the other bundles that arms name, and log what memory each adds (Linux)."""
    from serving.bundle.manifest import bundle_directory
    from serving.configuration.check import missing_bundles
    from serving.log import log

    own = recommender.bundle
    if missing := list(missing_bundles(recommender.configuration, own)):
        raise ValueError("; ".join(missing))
    for version in sorted(recommender.configuration.bundles - {own.version}):
        before = _resident_pages()
        path = bundle_directory(own.directory.parent, version)
        recommender.others[version] = type(recommender).load(path, settings).warm()
        megabytes = (_resident_pages() - before) * getpagesize() / 1e6
        log("arm_bundle_loaded", {"bundle": version, "megabytes": round(megabytes, 1)})


def _resident_pages() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) if statm.exists() else 0


def _run(process: Any, *arguments: Any) -> None:
    """Be this process and nothing else: what the parent would do after a fork is never reached."""
    code = 1
    try:
        process(*arguments)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        # The front is gone, or has let this process go while it was about to say something.
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(ended: Any) -> None:
    """Collect children that end, and say which and how."""

    def collect(*_: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended(pid, status)

    signal.signal(signal.SIGCHLD, collect)


def main() -> None:
    """Be the zygote of the front whose socket is the argument."""
    run_zygote(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
