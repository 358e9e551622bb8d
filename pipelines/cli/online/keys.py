"""The commands ``recsys keys``: who may call a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tomli_w
import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from pipelines.engine.console import log, out

app = typer.Typer(no_args_is_help=True)
KeyFile = Annotated[
    Path, typer.Option("--file", "-f", envvar="RECSYS_KEYS", help="File of keys, made if missing.")
]
DEFAULT = Path("keys.toml")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the key, for logs and audit lines.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read (the default), events, users, metrics or admin (repeatable)."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Label of the owner in listings and audit lines, by default the name."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Lists a second; no limit without it.")] = None,
    burst: Annotated[int | None, typer.Option(help="Lists at once; two seconds' worth.")] = None,
    file: KeyFile = DEFAULT,
) -> None:
    """Make a key and print it, this once: the file holds its hash.

    A running server knows it at once.

    [bold]Examples[/]

      recsys keys add shop --rate 100 --file keys.toml

      recsys keys add support --scope read --scope users
    """
    from serving.security.keys import digest_of, new_secret

    secret = new_secret()
    entry = {
        "name": name,
        "sha256": digest_of(secret),
        "scopes": scope or ["read"],
        "tenant": tenant,
        "rate": rate,
        "burst": burst,
    }
    made = tomli_w.dumps({"keys": [{key: one for key, one in entry.items() if one is not None}]})
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    _write(file, f"{before.rstrip()}\n\n{made}".lstrip())
    log.print(f"key {name} is in {file}; it is shown only now:", markup=False, soft_wrap=True)
    out.print(secret, markup=False, soft_wrap=True)


@app.command("list")
def list_keys(file: KeyFile = DEFAULT) -> None:
    """List the keys of a file, by name.

    [bold]Example[/] recsys keys list --file keys.toml
    """
    from serving.security.keys import read_keys

    table = Table(
        *("name", "tenant", "scopes"), Column("rate", justify="right"), box=box.SIMPLE_HEAD
    )
    for key in read_keys(file).keys:
        rate = "" if key.rate is None else f"{key.rate:g}/s"
        table.add_row(Text(key.name), key.owner, ", ".join(sorted(key.scopes)), rate)
    out.print(table)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the key.")], file: KeyFile = DEFAULT
) -> None:
    """Remove a key; a running server refuses it at once.

    [bold]Example[/] recsys keys remove shop --file keys.toml
    """
    from serving.security.keys import read_keys

    keys = read_keys(file).keys
    kept = [key.model_dump(mode="json", exclude_none=True) for key in keys if key.name != name]
    if len(kept) == len(keys):
        known = ", ".join(key.name for key in keys) or "none"
        raise ValueError(f"{file} has no key {name!r}; it has {known}")
    _write(file, tomli_w.dumps({"keys": kept}))
    out.print(f"key {name} is gone from {file}", markup=False, soft_wrap=True)


def _write(file: Path, text: str) -> None:
    """Replace the file if a server could read the new one.

    Raises:
        ValueError: Says what is wrong with the keys.
    """
    from recsys.data.durable import replace_file
    from serving.security.keys import read_keys

    def checked(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")
        # Hashes are no secret, and the server may run as another user; nobody else may write.
        partial.chmod(0o644)
        read_keys(partial, named=file)

    replace_file(file, checked)
