"""Where commands write: results on stdout, progress on stderr, errors as a sentence.

Exit codes: 0 success; 1 an internal error, with its traceback; 2 invalid command, configuration or
data; 3 a check refused (release: the champion stays; parity: differences); 5 an alarm was raised;
70 training diverged; 71 out of memory; 72 a process of a training on several was lost; 74 disk
error; 75 the workspace, a stage of it or the folder of bundles is in use; 130 interrupted. The
table of them for operators is in docs/exit-codes.md.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from pipelines.engine.errors import (
    AlarmError,
    ClusterError,
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
    ClusterError: 72,
    ValueError: 2,
    OSError: 74,
    KeyboardInterrupt: 130,
}


def exit_code_of(error: BaseException) -> int:
    """Return the exit code with which a command ends that raised this."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    return next((EXIT_CODES[kind] for kind in EXIT_CODES if isinstance(error, kind)), 1)


def message_of(error: BaseException) -> str:
    """Write an error for a person; a disk error without a file gets a hint."""
    text = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))
    if isinstance(error, OSError) and error.filename is None:
        return f"could not read or write a file: {text}. Is the disk full?"
    return text


REMOVED = {
    "join": "torchrun on the other machines (docs/several-machines.md)",
    "sync": "recsys tracking send",
}
"""Commands that were removed, and what to use instead."""


class PlainErrors(TyperGroup):
    """A group of commands that print expected failures as a sentence, without a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in REMOVED:
            ctx.fail(f"{args[0]} was removed; use {REMOVED[args[0]]}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except tuple(EXIT_CODES) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if os.environ.get("RECSYS_TRACEBACK"):
                log.print(escape(traceback.format_exc()), soft_wrap=True)
            message = escape(message_of(error))
            log.print(f"[bold red]error:[/] {message}", soft_wrap=True)
            raise typer.Exit(exit_code_of(error)) from None
