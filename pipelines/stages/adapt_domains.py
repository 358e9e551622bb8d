"""Stage adapt_domains: train an adapter of the released model for each of ``adapter.domains``.

Off unless a domain is named. If the harm gate refuses an adapter, or a domain has no items or no
events, the run prints it in one line, adapters.json has all verdicts, and the base serves the
domain and stays released. Adapters of a challenger are registered, not served.
"""

from __future__ import annotations

from typing import Any

from pipelines.adapters.adapt import adapt_to
from pipelines.adapters.gate import Judgement, RefusedAdapterError
from pipelines.adapters.task import EmptyDomainError
from pipelines.engine.artifacts import read_json, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import bundles_dir
from serving.bundle.adapters import domain_directory
from serving.bundle.manifest import CURRENT, bundle_directory


def are_registered(context: StageContext) -> bool:
    """Check that every registered adapter still exists."""
    outcomes = read_json(context.output / "adapters.json")
    folder = bundles_dir(context.config)
    return all(
        (domain_directory(folder, one["domain"]) / one["adapter"]).is_dir()
        for one in outcomes
        if one["adapter"] is not None
    )


def refusal_line(domain: str, judgement: Judgement) -> str:
    """Write why an adapter is not served, by the first verdict that failed, in one line."""
    failed = next(one for one in judgement.verdicts if not one.passed)
    return (
        f"the adapter of domain {domain!r} is refused, the base serves the domain: {failed.name} "
        f"is {failed.value:.4f}, the bound {failed.bound:.4f}"
    )


def adapt_domains(context: StageContext) -> StageRows:
    """Train, judge and register; a running server loads the published ones."""
    config = context.config
    folder = bundles_dir(config)
    released = read_json(context.inputs["release"] / "release.json")
    bundle = bundle_directory(folder, released["version"])
    current = folder / CURRENT
    published = current.exists() and current.resolve() == bundle.resolve()
    outcomes: list[dict[str, Any]] = []
    for domain in config.adapter.domains:
        try:
            found = adapt_to(
                config, domain, bundle, publish=published, show_progress=context.show_progress
            )
        except EmptyDomainError as error:
            none = Judgement(verdicts=[], metrics={}, changes=[]).as_json()
            made = {"adapter": None, "refused": str(error), **none}
            log.print(f"no adapter of {domain!r}: {error}", style="yellow", soft_wrap=True)
        except RefusedAdapterError as error:
            # Equal runs write equal bytes in any folder.
            reason = str(error).replace(f"{context.workspace.path}/", "")
            made = {"adapter": None, "refused": reason, **error.judgement.as_json()}
            log.print(refusal_line(domain, error.judgement), style="yellow", soft_wrap=True)
        else:
            made = {"adapter": found.directory.name, "refused": None, **found.judgement.as_json()}
        outcomes.append({"domain": domain, **made})
    (context.output / "adapters.json").write_text(to_json(outcomes))
    num_served = sum(one["adapter"] is not None for one in outcomes)
    return StageRows(rows_in=len(outcomes), rows_out=num_served)
