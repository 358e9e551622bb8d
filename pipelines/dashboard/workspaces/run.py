"""A run as the dashboard knows it: that of a workspace, or a released bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from pipelines.dashboard.workspaces.files import digest_of_settings
from pipelines.pages.document import Origin
from pipelines.publishing.released import shop_workspace

Kind = Literal["workspace", "bundle"]
Status = Literal["complete", "unfinished", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: the newest of a workspace, or a released bundle."""

    key: str
    """12 hexadecimal digits that name it in addresses; of its place, so that it stays."""
    name: str
    """For people: the workspace's name or the bundle's version."""
    kind: Kind
    status: Status
    time: datetime | None = None
    """When it ended, or last changed (UTC)."""
    path: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By ``<split>/<model>/<metric>``, such as ``test/blend_fast/ndcg@10``; finite values only.
    Models have the names of `pipelines.pages.wording`; the served list is `Run.served`."""
    config: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    """Text of the configuration of a workspace."""
    known_digest: str | None = None
    """Digest of the configuration of a bundle, as its manifest has it."""
    data_digest: str | None = None
    dataset: str | None = None
    seconds: float | None = None
    """Time of all stages together."""
    peak_memory: int | None = None
    """Bytes, of the largest stage."""
    tags: Mapping[str, str] = field(default_factory=dict)
    served: str | None = None
    """Model whose list is served, if the run says."""
    bundles: Sequence[str] = ()
    """Versions that the run released, the newest first."""
    made_by: str | None = None
    """Key of the workspace that released a bundle, if that is there."""
    problems: Sequence[str] = ()
    """Problems in words: a file that cannot be read, values that are no numbers."""

    @property
    def config_digest(self) -> str | None:
        """Digest of the configuration, computed when it is needed; None if it is not known."""
        return self.known_digest or (digest_of_settings(self.settings) if self.settings else None)

    @property
    def bundles_folder(self) -> Path:
        """Folder of bundles that a run releases into, or that a bundle is in."""
        above = self.path.parent
        if self.kind == "bundle":
            return above.parent if above.name == "refused" else above
        named = self.config.get("release.bundles", "null")
        return shop_workspace(self.path) / "bundles" if named == "null" else Path(named)

    @property
    def origin(self) -> Origin:
        """Origin of a block's numbers."""
        return Origin(
            run=self.key,
            name=self.name,
            config_digest=self.config_digest,
            data_digest=self.data_digest,
        )
