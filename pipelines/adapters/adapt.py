"""Adapt a released retriever to one domain: train, judge, refuse or register."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.adapters.gate import Judgement, judge_adapter, refuse_harm
from pipelines.adapters.retriever import train_and_rank, train_on_everything
from pipelines.adapters.task import load_task
from pipelines.config.run import RunConfig
from pipelines.engine.workspace import Workspace, bundles_dir, publishing
from serving.bundle.adapters import BASES, publish_adapter, write_adapter
from serving.bundle.manifest import CURRENT, read_chain


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A domain's registered adapter."""

    directory: Path
    judgement: Judgement
    num_labels: int
    """Labels of the domain that it was trained on."""
    num_steps: int
    share: float
    """Share of the base's parameters."""
    seconds: float


def adapt(
    config: RunConfig, domain: str, *, publish: bool = True, show_progress: bool = False
) -> Adapted:
    """Train an adapter for a domain, judge it by the harm gate, register it."""
    current = bundles_dir(config) / CURRENT
    with Workspace(config.workspace).lock():
        if not (config.workspace / "build_features" / "manifest.json").exists():
            raise ValueError(
                f"{config.workspace} holds no finished run; make one first: recsys run ..."
            )
        if not current.exists():
            raise ValueError(f"{current} does not exist; release a bundle first: recsys run")
        return adapt_to(
            config, domain, current.resolve(), publish=publish, show_progress=show_progress
        )


def adapt_to(
    config: RunConfig, domain: str, bundle: Path, *, publish: bool, show_progress: bool
) -> Adapted:
    """Adapt a bundle's model, in a locked workspace; errors as of ``adapt``."""
    begin = time.perf_counter()
    # Deltas that were appended keep the models of the first.
    released, bundles = read_chain(bundle)[0], bundles_dir(config)
    task = load_task(config, domain, choose_base(config, released.directory), show_progress)
    judged, best_step = train_and_rank(task)
    judgement = judge_adapter(judged, domain, config.adapter)
    refuse_harm(config, domain, judgement)
    adapter, num_steps, num_labels = train_on_everything(
        task, released.directory / task.base, best_step
    )
    with publishing(bundles):
        directory = write_adapter(
            bundles,
            adapter,
            domain=domain,
            base=task.base,
            base_version=released.manifest.version,
            metrics=judgement.metrics,
            verdicts=judgement.verdicts,
        )
        if publish:
            publish_adapter(directory)
    return Adapted(
        directory=directory,
        judgement=judgement,
        num_labels=num_labels,
        num_steps=num_steps,
        share=adapter.share,
        seconds=time.perf_counter() - begin,
    )


def choose_base(config: RunConfig, bundle: Path) -> str:
    """Choose which of a bundle's models is adapted."""
    present = [name for name in BASES if (bundle / name).is_dir()]
    wanted = config.adapter.model
    if (wanted != "auto" and wanted not in present) or not present:
        raise ValueError(
            f"adapter.model = {wanted!r}, but {bundle} has {', '.join(present) or 'neither'}"
        )
    return present[0] if wanted == "auto" else wanted
