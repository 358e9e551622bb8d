"""Adapt a released model to one domain: train, judge, refuse or register."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.adapters.gate import Judgement, judge_adapter, refuse_harm
from pipelines.adapters.ranker import RankerAdaptation
from pipelines.adapters.retriever import RetrieverAdaptation
from pipelines.adapters.task import Task, load_inputs, require_run
from pipelines.config.run import RunConfig
from pipelines.engine.workspace import Workspace, bundles_dir, publishing
from serving.bundle.adapters import BASES, BaseName, publish_adapter, write_adapter
from serving.bundle.manifest import CURRENT
from serving.bundle.published import Link, read_chain


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
        require_run(config)
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
    released, base = released_base(config, bundle)
    inputs, domains, order = load_inputs(config)
    task = Task(
        config=config,
        inputs=inputs,
        domains=domains,
        domain=domains.find_domain(domain),
        base=base,
        order=order,
        show_progress=show_progress,
    )
    adaptation = (RankerAdaptation if base == "ranker" else RetrieverAdaptation)(task, released)
    judgement = judge_adapter(adaptation.judge(), config.adapter)
    refuse_harm(config, domain, judgement)
    trained = adaptation.final()
    with publishing(bundles_dir(config)):
        directory = write_adapter(
            bundles_dir(config),
            trained.adapter,
            domain=domain,
            base=base,
            base_version=released.manifest.version,
            metrics=judgement.metrics,
            verdicts=judgement.verdicts,
        )
        if publish:
            publish_adapter(directory)
    return Adapted(
        directory=directory,
        judgement=judgement,
        num_labels=trained.num_labels,
        num_steps=trained.num_steps,
        share=trained.adapter.share,
        seconds=time.perf_counter() - begin,
    )


def released_base(config: RunConfig, bundle: Path) -> tuple[Link, BaseName]:
    """Find the bundle that deltas were appended to, and which of its models is adapted."""
    base = read_chain(bundle)[0]
    known: tuple[BaseName, ...] = BASES
    present = [name for name in known if (base.directory / name).is_dir()]
    wanted = config.adapter.model
    if (wanted != "auto" and wanted not in present) or not present:
        raise ValueError(
            f"adapter.model = {wanted!r}, but {base.directory} has "
            f"{', '.join(present) or 'neither'}"
        )
    return base, present[0] if wanted == "auto" else wanted
