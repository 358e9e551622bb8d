"""What becomes of a domain's adapter: refused for the harm it does, or registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.errors import RefusedError
from recsys.data.durable import write_durably
from serving.bundle.manifest import Verdict


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """What became of a domain's adapter."""

    directory: Path
    metrics: Mapping[str, Mapping[str, float]]
    verdicts: list[Verdict]
    num_labels: int
    """Of the domain, that the registered adapter learned from."""
    num_steps: int
    share: float
    seconds: float


def refuse_harm(config: RunConfig, domain: str, verdicts: list[Verdict]) -> None:
    """Keep the verdicts and stop where one of them failed.

    Raises:
        RefusedError: One failed; names each such check with its value and bound.
    """
    if all(verdict.passed for verdict in verdicts):
        return
    path = config.workspace / "refused-adapter.json"
    told = {"domain": domain, "verdicts": [verdict.model_dump() for verdict in verdicts]}
    write_durably(path, to_json(told))
    failed = [
        f"  {one.name}: {one.value:.4f} against a bound of {one.bound:.4f} ({one.reason})"
        for one in verdicts
        if not one.passed
    ]
    raise RefusedError(
        f"the adapter of domain {domain!r} is refused and was not registered; the domain is "
        "answered as before.\n" + "\n".join(failed) + f"\nAll verdicts: {path}. The bounds are "
        "in [adapter]."
    )
