"""``recsys demo``: MovieLens-100K from raw files to lists that can be read and served."""

from __future__ import annotations

import time
from pathlib import Path

from rich.text import Text

from pipelines.cli.demo_results import PRESET, print_results
from pipelines.cli.options import check_before
from pipelines.cli.output import print_lines, print_stage
from pipelines.cli.registry import tracked
from pipelines.engine.console import out
from pipelines.engine.runner import run_stages
from pipelines.presets.resolve import resolve, with_dataset
from pipelines.stages.list import STAGES


def run_demo(workspace: Path | None, *, show_progress: bool) -> None:
    """Run the preset's stages and print the results."""
    begin = time.perf_counter()
    out.print(Text("MovieLens-100K, from raw files to a bundle that can be served", style="bold"))
    config = resolve(preset=PRESET, workspace=workspace)
    check_before(config)
    config = with_dataset(config)
    print_lines(f"data: {config.data.events}", note=True, style="dim")
    with tracked(config) as recorder:
        run_stages(
            STAGES, config, show_progress=show_progress, recorder=recorder, finished=print_stage
        )
    print_results(config, time.perf_counter() - begin)
