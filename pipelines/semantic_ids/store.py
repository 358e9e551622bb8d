"""Published semantic IDs of a folder of bundles, by id row: item numbers that never change.

<bundles>/semantic_ids/
    item_ids.json         the items that ever had an ID; place + 1 is the id row, 0 is none
    versions/<version>/   semantic_ids.*, quantizer/, origin.json; codes by id row
    current               the versions that were current, the last one now

Item rows may change from one run to the next, because each run builds its vocabulary. A published
ID must not, so versions are stored by id row, and item_ids.json only grows: it is replaced before a
version is published, so a kill in between leaves id rows without an ID.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config.run import RunConfig
from recsys.data.durable import locked, new_directory, write_durably
from recsys.semantic_ids.codes import FILE_NAME, ItemCodes, SemanticIds, read_description
from recsys.semantic_ids.rq_kmeans import ResidualKMeans

CURRENT = "current"
VERSIONS = "versions"
QUANTIZER = "quantizer"
ORIGIN = "origin.json"
REPORT, ID_ROWS = "semantic_ids_report.json", "id_rows.npy"
"""Files of the artefact of build_semantic_ids."""


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
            text = json.dumps({"history": [*history, ids.version]}, indent=2) + "\n"
            write_durably(self.directory / CURRENT, text)
        return final

    def load(self, version: str | None = None) -> SemanticIds:
        """Read a version, or the current one; verified."""
        return SemanticIds.load(self.path_of(version), self._known(version))

    def path_of(self, version: str | None = None) -> Path:
        """Return the directory of a version, or of the current one."""
        return self._place(self._known(version))

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


FOLDER = "semantic_ids"
ITEM_IDS = "item_ids.json"
LOCK = "lock"
SHORT = 12
"""Characters of a version that are printed."""


@dataclass(frozen=True, kw_only=True)
class SemanticIdVersion:
    """One version of the semantic IDs and what made it."""

    ids: SemanticIds
    """By id row."""
    quantizer: ResidualKMeans
    origin: Mapping[str, Any]
    """``encoder`` and ``dim`` of the content, and ``settings``, the [semantic_ids] table."""


def read_item_ids(path: Path) -> list[str]:
    """Read the items by id row; place + 1 is the row. Empty where there is no file."""
    if not path.exists():
        return []
    try:
        item_ids = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); put a copy of it back, for published IDs mean nothing "
            "without it"
        ) from error
    if not isinstance(item_ids, list) or len(set(map(str, item_ids))) != len(item_ids):
        raise ValueError(f"{path} must be a list of different item ids; put a copy of it back")
    return [str(item_id) for item_id in item_ids]


class SemanticIdStore:
    """Versions of semantic IDs by item_id. Writers exclude each other; readers need no lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.versions = VersionStore(directory)
        self.item_ids: Sequence[str] = read_item_ids(directory / ITEM_IDS)

    def number(
        self, item_ids: Sequence[str], wanted: NDArray[np.bool_]
    ) -> tuple[list[str], NDArray[np.int64]]:
        """Look up id rows, [M], and give one to each wanted item that never had one.

        Returns:
            All items by id row, and the id rows; 0 for an item that has none.
        """
        known = {item_id: row for row, item_id in enumerate(self.item_ids, start=1)}
        id_rows = np.array([known.get(item_id, 0) for item_id in item_ids], np.int64)
        new = np.flatnonzero((id_rows == 0) & wanted)
        id_rows[new] = len(self.item_ids) + 1 + np.arange(len(new))
        return [*self.item_ids, *(item_ids[place] for place in new.tolist())], id_rows

    def current(self) -> str | None:
        """Return the current version; None if nothing was published."""
        history = self.versions.history()
        return history[-1] if history else None

    def has(self, version: str) -> bool:
        """Return True if a version was ever published."""
        return version in self.versions.versions()

    def leads_from(self, version: str) -> bool:
        """Return True if the current version is this one, or this one with items appended."""
        reached, made_by = self.current(), None
        while reached is not None and self.has(reached):
            described = read_description(self.versions.path_of(reached), FILE_NAME)
            made_by = made_by or described["quantizer_digest"]
            if described["quantizer_digest"] != made_by:
                return False
            if reached == version:
                return True
            reached = described["parent"]
        return False

    def previous(self, version: str | None = None) -> SemanticIdVersion | None:
        """Read a version, or the current one; None where nothing was published."""
        if version is None and self.current() is None:
            return None
        return SemanticIdVersion(
            ids=self.versions.load(version),
            quantizer=ResidualKMeans.load(self.versions.path_of(version) / QUANTIZER),
            origin=self.versions.origin(version),
        )

    def publish(
        self,
        ids: SemanticIds,
        quantizer: ResidualKMeans,
        item_ids: Sequence[str],
        origin: Mapping[str, Any],
    ) -> None:
        """Make a version current.

        Args:
            item_ids: Of all id rows from 1 on; begins with those the store has.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with locked(self.directory / LOCK):
            self._check_follows(ids, item_ids)
            if list(item_ids) != self.item_ids:
                text = json.dumps(list(item_ids), ensure_ascii=False, indent=0) + "\n"
                write_durably(self.directory / ITEM_IDS, text)
                self.item_ids = list(item_ids)
            self.versions.publish(ids, quantizer, origin)

    def _check_follows(self, ids: SemanticIds, item_ids: Sequence[str]) -> None:
        """Refuse a version that lacks published IDs."""
        self.item_ids = read_item_ids(self.directory / ITEM_IDS)
        known, current = len(self.item_ids), self.current()
        is_child = current is None or current in (ids.version, ids.parent)
        if not is_child or list(item_ids[:known]) != self.item_ids:
            raise ValueError(
                f"semantic IDs {ids.version[:12]} follow version {(ids.parent or 'none')[:12]}, "
                f"but {self.directory} is at {(current or 'none')[:12]} with {known:,} items: "
                "IDs were published meanwhile; run again to keep them"
            )


def read_version(artefact: Path) -> SemanticIdVersion | None:
    """Read the version of an artefact; None where items have no IDs."""
    report = json.loads((artefact / REPORT).read_text(encoding="utf-8"))
    if report["method"] == "none":
        return None
    return SemanticIdVersion(
        ids=SemanticIds.load(artefact, report["version"]),
        quantizer=ResidualKMeans.load(artefact / QUANTIZER),
        origin=report["origin"],
    )


def read_item_codes(artefact: Path) -> ItemCodes:
    """Read the semantic IDs by item row."""
    version = read_version(artefact)
    if version is None:
        raise ValueError(
            "there are no semantic IDs to generate: no item has content, or "
            'semantic_ids.method = "none". Give items text, or set '
            "generative_training.enabled = false"
        )
    id_rows = np.load(artefact / ID_ROWS, allow_pickle=False)
    return version.ids.by_item_row(torch.from_numpy(id_rows))


def open_id_store(config: RunConfig) -> SemanticIdStore:
    """Open the published versions next to a run's bundles."""
    return SemanticIdStore((config.release.bundles or config.workspace / "bundles") / FOLDER)


def publish_version(artefact: Path, store: SemanticIdStore) -> str | None:
    """Make the version of an artefact current in the store; return it, None without one.

    Where items were appended to it meanwhile, the store keeps their IDs.
    """
    version = read_version(artefact)
    if version is None:
        return None
    if not store.leads_from(version.ids.version):
        item_ids = read_item_ids(artefact / ITEM_IDS)
        store.publish(version.ids, version.quantizer, item_ids, version.origin)
    return version.ids.version
