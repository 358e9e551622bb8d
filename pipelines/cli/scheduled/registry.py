"""The command that fetches a registered bundle onto another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.tracking import ModelName, RegistryAddress, registry_of
from pipelines.engine.console import out


def fetch_bundle(
    name: Annotated[str, typer.Argument(help="Version of a bundle, or an alias: champion.")],
    bundles: Annotated[
        Path, typer.Option("--bundles", "-b", help="Folder that the bundle is fetched into.")
    ],
    registry: RegistryAddress = None,
    model: ModelName = None,
) -> None:
    """Fetch a registered bundle, verified by its digest, so that this machine can serve it.

    Needs the tracking server, and the folder or URL of the setting tracking.bundles where it was
    made; a fetch that was cut off is continued. The
    first bundle of a folder is served at once; [bold]recsys promote --from-registry[/] follows the
    alias from then on.

    [bold]Examples[/]

      recsys fetch-bundle champion --registry http://mlflow:5000 --bundles /srv/bundles

      recsys serve --bundles /srv/bundles
    """
    from pipelines.publishing.from_registry import fetch_bundle as fetch_it
    from pipelines.publishing.from_registry import fetched_words

    config, outbox = registry_of(bundles, registry, model)
    fetched, served = fetch_it(name, bundles, config=config, outbox=outbox)
    version = fetched.version
    words = f"bundle {version} is in {bundles}: {fetched_words(fetched)}"
    then = f"recsys serve --bundles {bundles}" if served else f"recsys promote {version}"
    out.print(f"{words}; next: {then}", markup=False, soft_wrap=True)
