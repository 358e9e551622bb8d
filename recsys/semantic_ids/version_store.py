"""Published versions of the semantic IDs in a directory, with one of them current.

versions/<version>/   semantic_ids.*, quantizer/, origin.json (how they were made)
current               the current version's digest and those before it, newest last, as JSON

A version is written next to its place, forced to disk and renamed: after a kill it is absent or
whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.data.durable import new_directory, write_durably
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.rq_kmeans import ResidualKMeans

CURRENT = "current"
VERSIONS = "versions"
QUANTIZER = "quantizer"
ORIGIN = "origin.json"


class VersionStore:
    """Semantic IDs by version. One process writes at a time; readers need no lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _place(self, version: str) -> Path:
        return self.directory / VERSIONS / version

    def history(self) -> list[str]:
        """List the versions that were current, the current one last; empty where there is none."""
        path = self.directory / CURRENT
        if not path.exists():
            return []
        try:
            history = json.loads(path.read_text(encoding="utf-8"))["history"]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); publish the version in use again"
            ) from error
        return [str(version) for version in history]

    def versions(self) -> list[str]:
        """List all versions that are here, sorted by digest."""
        places = (self.directory / VERSIONS).glob("[!.]*/semantic_ids.json")
        return sorted(path.parent.name for path in places)

    def publish(
        self, ids: SemanticIds, quantizer: ResidualKMeans, origin: Mapping[str, Any] | None = None
    ) -> Path:
        """Write a version and make it current; one that is here already is made current again."""
        if quantizer.digest != ids.quantizer_digest:
            raise ValueError(
                f"semantic IDs {ids.version} were made by quantiser {ids.quantizer_digest}, this "
                f"is {quantizer.digest}; publish IDs together with what made them"
            )
        final = self._place(ids.version)
        if not final.exists():
            with new_directory(final) as partial:
                ids.save(partial)
                quantizer.save(partial / QUANTIZER)
                text = json.dumps(dict(origin or {}), indent=2, sort_keys=True) + "\n"
                (partial / ORIGIN).write_text(text, encoding="utf-8")
        history = self.history()
        if history[-1:] != [ids.version]:
            self._set_history([*history, ids.version])
        return final

    def _set_history(self, history: list[str]) -> None:
        text = json.dumps({"history": history}, indent=2) + "\n"
        write_durably(self.directory / CURRENT, text)

    def load(self, version: str | None = None) -> SemanticIds:
        """Read a version, or the current one; verified."""
        return SemanticIds.load(self.path_of(version), self._known(version))

    def path_of(self, version: str | None = None) -> Path:
        """Return the directory of a version, or of the current one."""
        return self._place(self._known(version))

    def quantizer_path(self, version: str | None = None) -> Path:
        """Return the directory that the version's quantiser is loaded from."""
        return self.path_of(version) / QUANTIZER

    def origin(self, version: str | None = None) -> dict[str, Any]:
        """Read how a version was made, as passed to ``publish``."""
        path = self.path_of(version) / ORIGIN
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); publish the version again") from error

    def _known(self, version: str | None) -> str:
        history = self.history()
        wanted = version if version is not None else (history[-1] if history else None)
        if wanted is None:
            raise ValueError(f"{self.directory} has no current semantic IDs; publish a version")
        if wanted not in self.versions():
            raise ValueError(
                f"semantic IDs {wanted} are not in {self.directory}, which has {self.versions()}"
            )
        return wanted
