"""Where commands write: results on stdout, progress on stderr, errors as a sentence.

Exit codes: 0 done; 1 a fault of ours, with its traceback; 2 something to mend in the command, the
configuration or the data; 3 a release check refused, the champion stays; 70 training did not stay
finite; 74 the disk failed; 75 another run holds the workspace; 130 interrupted.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from pipelines.engine.errors import RefusedError, UnstableTrainingError, WorkspaceBusyError

WIDTH = 100


def make_console(*, stderr: bool = False) -> Console:
    """Write at most 100 columns, and 100 where no terminal says how wide it is."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console.width = WIDTH
    return console


out = make_console()
log = make_console(stderr=True)


EXIT_CODES: dict[type[BaseException], int] = {
    WorkspaceBusyError: 75,
    RefusedError: 3,
    UnstableTrainingError: 70,
    ValueError: 2,
    OSError: 74,
    KeyboardInterrupt: 130,
}


def message_of(error: BaseException) -> str:
    """Write an error for a person; what the disk refused says which file, or asks."""
    text = str(error) or "interrupted"
    if isinstance(error, OSError) and error.filename is None:
        return f"could not read or write a file: {text}. Is the disk full?"
    return text


class PlainErrors(TyperGroup):
    """A group of commands whose expected failures are told in a sentence, without a traceback."""

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
            kinds = (kind for kind in EXIT_CODES if isinstance(error, kind))
            raise typer.Exit(EXIT_CODES[next(kinds)]) from None
