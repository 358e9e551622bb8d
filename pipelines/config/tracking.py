"""The section ``[tracking]``: the server that records runs, and how long a command waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Recording of runs in MLflow."""

    enabled: bool = True
    """Record runs."""
    uri: str | None = None
    """An MLflow server (http://host:5000) or database (sqlite:////path/mlflow.db); None is the one
    of MLFLOW_TRACKING_URI, else SQLite in the workspace. User and password come from
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = "recsys"
    """Experiment under which MLflow lists the runs."""
    model: str = "recsys"
    """Model under which the registry lists the bundles."""
    bundles: str | None = None
    """Folder or URL (s3://shop/bundles) that released bundles are copied to, so that other machines
    can fetch them; None points at where they were made."""
    sync_seconds: float = 60.0
    """How long a command may wait at its end for the store; the rest is sent later."""
    request_seconds: int = 5
    """How long one request to the server may take."""
    max_retries: int = 1
    """More attempts of a request that failed."""

    def __post_init__(self) -> None:
        for name, instead in (
            ("uri", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
            ("bundles", "what the driver of the store reads, such as AWS_SECRET_ACCESS_KEY"),
        ):
            if urlsplit(getattr(self, name) or "").password:
                raise ValueError(
                    f"tracking.{name} holds a password, which would be written into every run's "
                    f"configuration; take it out and set {instead}"
                )
        for name in ("sync_seconds", "request_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"tracking.{name} must be > 0, got {getattr(self, name)}")
