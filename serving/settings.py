"""Settings: how a bundle is served, and how a server process runs (RECSYS_*, command line)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recsys.data.bounds import check_bounds
from serving.bundle.manifest import CURRENT, Profile

PREFIX = "RECSYS_"
MAY_BE_ZERO = ("port", "log_features_share", "drain_notice_seconds", "drain_seconds")
"""Numbers that may be 0; all others are above."""


def usable_cpus() -> int:
    """Count the CPUs that this process may keep busy: its affinity, and a container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return count


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How a bundle is served; handed as it is from the settings to the recommender."""

    profile: Profile = "fast"
    """``full`` also queries slower models, such as a generative one, where the bundle has any."""
    beam_timeout_ms: float | None = None
    """Lists omit generated items that take longer, and say so; None waits for them."""
    exclude_history: bool | None = None
    """Whether lists of surface ``home`` leave out what the user already interacted with; None
    does as the bundle was evaluated."""
    config: Path | None = None
    """File of surfaces, rules and experiments (docs/control.md); None has the built-in surfaces.
    A server takes over a changed file, and keeps the one before where the new one is faulty."""
    ranker_timeout_ms: float | None = None
    """Lists keep the blend's order where ranking takes longer, and say so; None waits for it."""
    log_features_share: float = 0.05
    """Share of the kept lists whose records hold what models read, which
    `recsys parity` compares (docs/decisions/drift.md); 0 keeps none, 1 those of every list."""

    def __post_init__(self) -> None:
        check_bounds(self, log_features_share="[0, 1]")


@dataclass(frozen=True, kw_only=True)
class Settings(ServingOptions):
    """How one server process runs."""

    bundles: Path = Path("bundles")
    """Folder with ``bundle-*`` and the link ``current``."""
    bundle: str | None = None
    """Version in that folder that is served (``bundle-v2``); None follows ``current``."""
    workers: int | None = None
    """Processes that make lists; None is one for each usable CPU."""
    queue_ms: float = 100.0
    """A request that would wait, or has waited, longer for a worker gets 503."""
    max_queue: int = 10_000
    """Requests that may wait for a worker."""
    max_connections: int = 10_000
    """Open connections; fewer where the limit of open files (``ulimit -n``) is lower. Where there
    are as many, the one that has waited longest for its client is closed for a new one."""
    max_header_bytes: int = 32 << 10
    """A larger head of a request is refused with 431."""
    header_timeout_seconds: float = 10.0
    """A connection that takes longer to send a request's head is closed."""
    write_timeout_seconds: float = 20.0
    """A connection that reads nothing of its reply for longer is closed."""
    keep_alive_seconds: int = 75
    """How long an idle connection is kept; longer than balancers keep theirs (60 s)."""
    drain_notice_seconds: float = 1.0
    """How long ``/readyz`` says 503 after SIGTERM while requests are still taken."""
    host: str = "127.0.0.1"
    """Address that the server listens on."""
    port: int = 8000
    """0 takes any free port."""
    beam_timeout_ms: float | None = 200.0
    ranker_timeout_ms: float | None = 50.0
    poll_seconds: float = 0.5
    """How often ``current`` is polled (a link and a file's times); SIGHUP polls at once."""
    max_body_bytes: int = 8 << 20
    """A larger request body is refused with 413."""
    body_timeout_seconds: float = 10.0
    """A body that takes longer to arrive is refused with 408."""
    drain_seconds: int = 10
    """How long the server then waits for requests that are being answered."""
    log_requests: bool = True
    """Whether each request is a line of the log."""
    keys: Path | None = None
    """File of clients' keys (serving/security/keys.py); None requires none."""
    allow_anonymous: bool = False
    """Whether a server without keys may listen on an address that other machines reach."""
    expose_users: bool = False
    """Whether anyone who may request lists may also list users and read their histories.

    Without it a key with the scope ``users`` may; others get no history from ``explain`` either:
    reasons then name only items that the request itself sent.
    """
    allow_admin: bool = False
    """Whether a server without keys lets anyone hide items and forget users; for a trial."""
    store: str | None = None
    """Online store of events, served lists and hidden items: ``sqlite:FOLDER``,
    ``redis://HOST:PORT/0`` or ``none``; None is SQLite in ``online`` next to the bundles'
    folder, or no store where that cannot be written."""
    store_timeout_ms: float = 50.0
    """Lists omit what the store says where it takes longer, and say so."""
    log_lists: bool = True
    """Whether served lists are kept in the store, for explanations, parity and evaluation."""
    event_days: float = 365.0
    """How long the store keeps events."""
    log_days: float = 7.0
    """How long the store keeps served lists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and field.name not in MAY_BE_ZERO and not value > 0:
                raise ValueError(f"{field.name} must be > 0, got {value}")
        check_bounds(self, port="[0, 65536)")

    @property
    def followed(self) -> Path:
        """The bundle that is served, or the link ``current`` that says which."""
        return (self.bundles / (self.bundle or CURRENT)).absolute()

    @property
    def store_url(self) -> str:
        """Address of the online store."""
        return self.store or f"sqlite:{self.bundles.absolute().parent / 'online'}"

    @property
    def num_workers(self) -> int:
        """Processes that make lists."""
        return self.workers or usable_cpus()

    def to_json(self) -> dict[str, Any]:
        """Write the settings for another process."""
        document: dict[str, Any] = TypeAdapter(Settings).dump_python(self, mode="json")
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Settings:
        """Read what ``to_json`` wrote."""
        return TypeAdapter(cls).validate_python(document)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, **given: object
    ) -> Settings:
        """Read RECSYS_BUNDLES, RECSYS_PORT and so on; given values that are not None win.

        Raises:
            ValueError: Names the variable whose value cannot be read.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, object] = {
            field.name: environment[PREFIX + field.name.upper()]
            for field in fields(cls)
            if PREFIX + field.name.upper() in environment
        }
        values |= {name: value for name, value in given.items() if value is not None}
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0]) if first["loc"] else "settings"
            raise ValueError(
                f"{name} (environment {PREFIX}{name.upper()}): {first['msg']}, "
                f"got {first['input']!r}"
            ) from error
