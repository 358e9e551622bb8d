"""What a bundle's entry in the registry says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAMPION = "champion"
CHALLENGER = "challenger"


def release_tags(bundles: Path, document: dict[str, Any]) -> dict[str, str]:
    """Return the tags that a released bundle has in the registry."""
    verdicts = {f"verdict.{one['name']}": str(one["value"]) for one in document["verdicts"]}
    return {"bundles": str(bundles.absolute()), **verdicts}
