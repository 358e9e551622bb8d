"""The commands on a server's files: ``recsys keys`` and ``recsys config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tomli_w
import typer

from pipelines.cli.options import find_bundle
from pipelines.cli.output import print_lines

keys_app = typer.Typer(no_args_is_help=True)
config_app = typer.Typer(no_args_is_help=True)
KeyFile = Annotated[
    Path, typer.Option("--file", "-f", envvar="RECSYS_KEYS", help="File of keys, made if missing.")
]
KeyName = Annotated[str, typer.Argument(help="Name of the key, for logs and audit lines.")]
DEFAULT = Path("keys.toml")


@keys_app.command("add")
def add_key(
    name: KeyName,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read (the default), events, users, metrics or admin (repeatable)."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Lists a second; no limit without it.")] = None,
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
    entry: dict[str, object] = {
        "name": name,
        "sha256": digest_of(secret),
        "scopes": scope or ["read"],
    }
    if rate is not None:
        entry["rate"] = rate
    made = tomli_w.dumps({"keys": [entry]})
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    write_keys(file, f"{before.rstrip()}\n\n{made}".lstrip())
    print_lines(f"key {name} is in {file}; it is shown only now:", note=True)
    print_lines(secret)


@keys_app.command("remove")
def remove_key(name: KeyName, file: KeyFile = DEFAULT) -> None:
    """Remove a key; a running server refuses it at once.

    [bold]Example[/] recsys keys remove shop --file keys.toml
    """
    from serving.security.keys import read_keys

    keys = read_keys(file).keys
    kept = [key.model_dump(mode="json", exclude_none=True) for key in keys if key.name != name]
    if len(kept) == len(keys):
        known = ", ".join(key.name for key in keys) or "none"
        raise ValueError(f"{file} has no key {name!r}; it has {known}")
    write_keys(file, tomli_w.dumps({"keys": kept}))
    print_lines(f"key {name} is gone from {file}")


def write_keys(file: Path, text: str) -> None:
    """Replace the file if a server could read the new one."""
    from recsys.data.durable import replace_file
    from serving.security.keys import read_keys

    def checked(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")
        # Hashes are no secret, and the server may run as another user; no other user may write.
        partial.chmod(0o644)
        read_keys(partial, named=file)

    replace_file(file, checked)


@config_app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration, such as serving.toml.")],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", "-b", help="Check names against this bundle too.")
    ] = None,
) -> None:
    """Check a server's configuration, and list its faults.

    [bold]Examples[/]

      recsys config check serving.toml

      recsys config check serving.toml --bundle runs/shop
    """
    from serving.configuration.check import unfit
    from serving.configuration.file import read_configuration

    configuration = read_configuration(file)
    counts = (len(configuration.rules), len(configuration.experiments))
    names = ", ".join(configuration.surfaces)
    print_lines(f"surfaces {names}; {counts[0]} rules, {counts[1]} experiments")
    print_lines(*(f"warning: {sentence}" for sentence in configuration.warnings), note=True)
    if bundle is None:
        if unknown := list(configuration.unknown_sources()):
            own = "if it is a model of your own, check with --bundle"
            raise ValueError(f"{file}: {'; '.join(unknown)}; {own}")
        return
    from serving.bundle.load import load_bundle
    from serving.settings import ServingOptions
    from serving.sources import sources_of

    loaded = load_bundle(find_bundle(bundle))
    sources = sources_of(loaded, ServingOptions(profile="full"))
    faults = list(unfit(configuration, loaded, sources))
    if faults:
        raise ValueError("\n".join(f"{file}: {fault}" for fault in faults))
    print_lines(f"bundle {loaded.version} has all that it names")
