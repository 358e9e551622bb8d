"""A child process without root's rights."""

import multiprocessing
import os
from collections.abc import Callable


def as_nobody(action: Callable[[], object]) -> object:
    """Run an action in a fork without root's rights; return its result, or its error's message."""
    forked = multiprocessing.get_context("fork")
    receive, send = forked.Pipe(duplex=False)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            send.send(action())
        except Exception as error:
            send.send(str(error))

    child = forked.Process(target=run)
    child.start()
    child.join()
    return receive.recv()
