"""Published versions of the semantic IDs in a directory, with one of them current.

versions/<version>/   semantic_ids.*, quantizer/, origin.json (how they were made), and the delta
                      from the parent if that is here
current               the current version's digest and those before it, newest last, as JSON

A version is written next to its place, forced to disk and renamed: after a kill it is absent or
whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.data.durable import new_directory, write_durably
from recsys.semantic_ids.codes import FILE_NAME, SemanticIds
from recsys.semantic_ids.delta import FILE_NAME as DELTA
from recsys.semantic_ids.delta import VersionDelta, diff
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from recsys.semantic_ids.tensor_file import read_description

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
                if ids.parent is not None and self._place(ids.parent).exists():
                    self._write_delta(partial, ids, self.load(ids.parent))
        history = self.history()
        if history[-1:] != [ids.version]:
            self._set_history([*history, ids.version])
        return final

    @staticmethod
    def _write_delta(directory: Path, ids: SemanticIds, parent: SemanticIds) -> None:
        same_shape = parent.num_levels == ids.num_levels
        if same_shape and parent.num_item_rows <= ids.num_item_rows:
            diff(parent, ids).save(directory)

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

    def rollback(self, version: str | None = None) -> str:
        """Make an earlier version current: the one before, or the one named."""
        history = self.history()
        if version is None:
            if len(history) < 2:
                raise ValueError(f"{self.directory} has no version before the current one")
            history = history[:-1]
        else:
            history = [*history, version]
        self.load(history[-1])
        self._set_history(history)
        return history[-1]

    def retired_codes(self, version: str | None = None) -> Tensor:
        """Collect IDs that ancestors had and a version has not; they are never reused.

        Counts ancestors of the same quantiser only; returns [R, L] int32.
        """
        newest = self.load(version)
        found = [torch.empty(0, newest.num_levels, dtype=torch.int32)]
        child, parent = newest.version, newest.parent
        while parent is not None and self._place(parent).exists():
            described = read_description(self._place(parent), FILE_NAME)
            if described["quantizer_digest"] != newest.quantizer_digest:
                break
            codes = self._codes_left_behind(child, parent)
            found.append(codes[newest.find_item_rows(codes) == 0])
            child, parent = parent, described["parent"]
        retired: Tensor = torch.unique(torch.cat(found), dim=0)
        return retired

    def given_elsewhere(self) -> tuple[Tensor, Tensor]:
        """Collect the IDs of versions that do not lead to the current one, as after a rollback.

        Counts versions of the same quantiser only. Leaves out IDs that the current version has.

        Returns:
            Item rows, [R] int64, and their IDs, [R, L] int32.
        """
        newest = self.load()
        leading: set[str] = set()
        version: str | None = newest.version
        while version is not None and self._place(version).exists():
            leading.add(version)
            version = read_description(self._place(version), FILE_NAME)["parent"]
        rows = [torch.empty(0, dtype=torch.int64)]
        codes = [torch.empty(0, newest.num_levels, dtype=torch.int32)]
        for other in set(self.versions()) - leading:
            described = read_description(self._place(other), FILE_NAME)
            made_alike = described["quantizer_digest"] == newest.quantizer_digest
            if made_alike and tuple(described["level_sizes"]) == newest.level_sizes:
                ids = self.load(other)
                found = ids.item_rows[newest.find_item_rows(ids.codes[ids.item_rows]) == 0]
                rows.append(found)
                codes.append(ids.codes[found])
        pairs: Tensor = torch.cat([torch.cat(rows)[:, None], torch.cat(codes).long()], dim=1)
        pairs = torch.unique(pairs, dim=0)
        return pairs[:, 0], pairs[:, 1:].int()

    def _codes_left_behind(self, child: str, parent: str) -> Tensor:
        """Read the codes that a parent's items lost, or all of them without a delta."""
        if not (self._place(child) / f"{DELTA}.json").exists():
            ids = self.load(parent)
            return ids.codes[ids.item_rows]
        # A version is the whole catalogue, its delta one day's items; most days lose none.
        delta = VersionDelta.load(self._place(child))
        lost = torch.cat([delta.retired, delta.moved])
        if len(lost) == 0:
            return torch.empty(0, len(delta.level_sizes), dtype=torch.int32)
        return self.load(parent).codes[lost]
