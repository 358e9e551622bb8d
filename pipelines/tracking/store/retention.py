"""Remove the files of bundles that were superseded long ago, so that a store does not grow forever.

The registry keeps their entries, which then say that the files are gone. What an alias names, and
what that was appended to, always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.tracking.store.companions import COMPANIONS_TAG, folder_of, place_of
from pipelines.tracking.store.connection import (
    PARENT_TAG,
    REMOVED_TAG,
    VERSION_TAG,
    has_files,
    registered,
    repository_of,
)


def superseded(versions: Sequence[Any], aliased: set[str], keep: int) -> list[Any]:
    """List the versions whose files can go.

    Args:
        versions: Of one model, with files, newest first.
        aliased: Registry's numbers that an alias names.
        keep: How many of the newest bundles stay, and how many of the newest deltas.
    """
    bundles = [one for one in versions if "+" not in one.tags[VERSION_TAG]]
    deltas = [one for one in versions if "+" in one.tags[VERSION_TAG]]
    named = [one for one in versions if str(one.version) in aliased]
    stay = {str(one.version) for one in (*bundles[:keep], *deltas[:keep], *named)}
    # A delta is of no use without what it was appended to.
    needed = {one.tags.get(PARENT_TAG) for one in deltas if str(one.version) in stay}
    return [
        one
        for one in versions
        if str(one.version) not in stay and one.tags[VERSION_TAG] not in needed
    ]


def remove_superseded(client: Any, uri: str, model: str, keep: int) -> None:
    """Remove the files of all but the newest bundles of a model from the store.

    Args:
        keep: 0 keeps all.
    """
    if not keep:
        return
    versions = [one for one in registered(client, model) if has_files(one)]
    aliases = client.get_registered_model(model).aliases
    aliased = {str(number) for number in aliases.values()}
    for one in superseded(versions, aliased, keep):
        place = client.get_run(one.run_id).info.artifact_uri.rstrip("/")
        folder = f"bundle-{one.tags[VERSION_TAG]}"
        # Whoever can write to the registry must not choose what is deleted elsewhere.
        if one.source == f"{place}/{folder}":
            client.set_model_version_tag(model, one.version, REMOVED_TAG, "removed")
            repository_of(uri, place).delete_artifacts(folder)
            if found := place_of(one.tags.get(COMPANIONS_TAG)):
                place = client.get_run(found[0]).info.artifact_uri
                repository_of(uri, place).delete_artifacts(folder_of(one.tags[VERSION_TAG]))
