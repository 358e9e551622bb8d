"""Consoles of commands: results on stdout, progress on stderr, errors as a sentence.

Exit codes: 0 success; 1 an internal error, with its traceback; 2 invalid command, configuration or
data; 3 a check refused (release: the champion stays; parity: differences); 5 an alarm was raised;
70 training diverged; 71 out of memory; 72 a process of a training on several was lost; 74 disk
error; 75 the workspace, a stage of it or the folder of bundles is in use; 130 interrupted. The
table of them for operators is in docs/exit-codes.md.
"""

from __future__ import annotations

from rich.console import Console

from pipelines.engine.errors import (
    AlarmError,
    RankLostError,
    RefusedError,
    UnstableTrainingError,
    WorkspaceBusyError,
)

WIDTH = 100


def make_console(*, stderr: bool = False) -> Console:
    """Make a console of at most 100 columns, and of 100 without a terminal."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console.width = WIDTH
    return console


out = make_console()
log = make_console(stderr=True)


EXIT_CODES: dict[type[BaseException], int] = {
    WorkspaceBusyError: 75,
    RefusedError: 3,
    AlarmError: 5,
    UnstableTrainingError: 70,
    MemoryError: 71,
    RankLostError: 72,
    ValueError: 2,
    OSError: 74,
    KeyboardInterrupt: 130,
}


def find_exit_code(error: BaseException) -> int:
    """Return the exit code with which a command ends that raised this."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    return next((EXIT_CODES[kind] for kind in EXIT_CODES if isinstance(error, kind)), 1)


def format_error(error: BaseException) -> str:
    """Write an error for a person; a disk error without a file gets a hint."""
    text = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))
    if isinstance(error, OSError) and error.filename is None:
        return f"could not read or write a file: {text}. Is the disk full?"
    return text
