"""The reference of the command line, from the parser itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from docs.generators.text import code, entries, escaped, prose
from pipelines.cli.main import EXIT_CODES, app

HEAD = """# Command line

Every command with its arguments and options, from the parser; `recsys COMMAND --help` prints the
same.
"""


def commands(group: Any, path: tuple[str, ...] = ("recsys",)) -> Iterator[tuple[str, Any]]:
    """List the commands of a group and of those in it, each with its full name."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def command_line_page() -> str:
    """Write a section a command."""
    parts = [HEAD, escaped(EXIT_CODES).replace("\n", " ") + "\n"]
    for name, command in commands(get_command(app)):
        parts += [f"## {name}\n", help_text(command.help or ""), parameters(command)]
    return "\n".join(parts)


def help_text(text: str) -> str:
    """Turn a help text into Markdown; its indented lines are examples."""
    blocks, examples = [], []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith("  "):
            examples += [line.strip() for line in paragraph.splitlines()]
            continue
        bold = re.fullmatch(r"\[bold\](.+?)\[/(?:bold)?\]", paragraph.strip())
        blocks.append(f"**{bold[1]}**" if bold else prose(re.sub(r"\[/?\w*\]", "", paragraph)))
    if examples:
        blocks.append("```\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(blocks) + "\n"


def parameters(command: Any) -> str:
    """List a command's arguments and options."""
    rows = []
    for parameter in command.params:
        if parameter.hidden:
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        is_argument = not names[0].startswith("-")
        shown = parameter.metavar or names[0].upper() if is_argument else ", ".join(names)
        kind = "" if is_argument or parameter.is_flag else parameter.metavar or kind_of(parameter)
        default = "required" if parameter.required else default_of(parameter)
        rows.append((shown, kind, default, prose(parameter.help or "")))
    return entries(rows)


def kind_of(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    name = getattr(annotation, "__name__", str(annotation))
    words = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "Path": "PATH", "list": "TEXT"}
    return words.get(name, name.upper()) + (" (repeatable)" if parameter.multiple else "")


def default_of(parameter: Any) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) else code(str(value))
