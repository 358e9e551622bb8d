"""A stranger's own events: the data, the machine and a budget decide what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.schema import FeatureChoice, SplitConfig
from pipelines.config.auto import AutoConfig
from pipelines.config.run import RunConfig
from pipelines.presets.shop import shop


def automatic() -> RunConfig:
    """Start here for data of one's own; name the files in [data]."""
    return replace(
        shop(),
        workspace=Path("runs/auto"),
        auto=AutoConfig(enabled=True),
        splits=SplitConfig(kind="auto"),
        features=FeatureChoice(catalogue_only_items="auto"),
    )
