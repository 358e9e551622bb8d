"""What a run of batch scoring is to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from serving.bundle.manifest import Profile


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Passed from process to process as JSON."""

    bundle: str
    """Path of the bundle, or of the link to it."""
    out: str
    surface: str = "home"
    """One that takes users (of kind ``home``) or items (``related``)."""
    config: str | None = None
    """File of surfaces, rules and experiments, as a server reads it."""
    k: int = 20
    profile: Profile = "fast"
    filter: Mapping[str, Any] = field(default_factory=dict)
    """As in a request of the API."""
    unix_time: int | None = None
    """Time of every request; None takes what the folder's manifest says, else what the API takes
    for a request without one when the job begins."""
    active_since: int | None = None
    """Only users with an event at or after this unix second."""
    keys_file: str | None = None
    """JSON list of the user ids (for ``related`` item ids); None takes all that the bundle has."""
    keys_are: Literal["user_id", "item_id"] | None = None
    """What was chosen; refused where the surface takes the other."""
    keys_name: str = "all"
    """What the manifest says they are."""
    workers: int = 1
    """Processes of this machine, or tasks at once of a Ray cluster that is started for the job."""
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    """``host:port`` of a Ray cluster; None takes RAY_ADDRESS, or starts one on this machine."""
    max_failed_share: float = 0.01
    """With more failed lists the job is not complete."""

    def __post_init__(self) -> None:
        if self.address is not None and self.engine != "ray":
            raise ValueError(f"--address {self.address} is of a Ray cluster: add --engine ray")
