"""Where runs are tracked, and how long they wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where runs are recorded; ``[tracking]``."""

    enabled: bool = True
    """Whether runs are recorded at all."""
    uri: str | None = None
    """An MLflow server (http://host:5000) or database (sqlite:////path/mlflow.db); None is the one
    of MLFLOW_TRACKING_URI, else SQLite in the workspace. User and password come from
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = "recsys"
    """Name under which MLflow lists the runs."""
    model: str = "recsys"
    """Name of the bundles in the model registry."""
    upload_bundles: bool = True
    """Whether a released bundle's files are uploaded into the store, so that other machines can
    fetch it; otherwise the registry keeps their path on this machine."""
    keep_bundles: int = 30
    """How many uploaded bundles, and how many deltas, keep their files in the store, beside what an
    alias names; 0 keeps all."""
    fetch_seconds: float = 3600.0
    """How long fetching a bundle may take."""
    sync_seconds: float = 60.0
    """How long a run may wait at its end for the store; what is not sent then is sent later."""
    live_seconds: float = 60.0
    """How often a run's curves are sent while it runs, in the background."""
    request_seconds: int = 5
    """How long one request to the server may take."""
    max_retries: int = 1
    """More attempts of a request that failed."""

    def __post_init__(self) -> None:
        if self.uri is not None and urlsplit(self.uri).password:
            raise ValueError(
                "tracking.uri holds a password, which would be written into every run's "
                "configuration; take it out and set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD"
            )
        if self.keep_bundles < 0:
            raise ValueError(f"tracking.keep_bundles must be >= 0, got {self.keep_bundles}")
        for name in ("sync_seconds", "live_seconds", "request_seconds", "fetch_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"tracking.{name} must be > 0, got {getattr(self, name)}")
