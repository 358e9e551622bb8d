"""Judges in the gate: only those that are shown to agree with what users chose.

``recsys judge`` measures that and writes it beside the run; a run or an update whose gate names
another judge is refused at its start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pipelines.config.release import GateConfig
from pipelines.publishing.gate.subject import Subject, at_least, warning
from recsys.data.batch import Jagged
from recsys.evaluation.judges import RUBRICS, Known, rubrics_of
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict

REPORT = "judge/judges.json"


def report_path(workspace: Path) -> Path:
    """Where ``recsys judge`` writes what it measured of a run's judges."""
    return workspace / REPORT


def check_judges(config: GateConfig, workspace: Path) -> None:
    """Refuse a gate whose judges are not shown to agree with held-out events.

    Raises:
        ValueError: Names the judge and what to do.
    """
    if not config.judges:
        return
    path = report_path(workspace)
    if not path.exists():
        raise ValueError(
            f"release.gate.judges names {', '.join(config.judges)}, and {path} is missing: run "
            f"recsys judge {workspace}, which measures whether they agree with what users chose"
        )
    judges = json.loads(path.read_text(encoding="utf-8"))["judges"]
    shown = sorted(name for name, one in judges.items() if one["shown"] and name in RUBRICS)
    for name in config.judges:
        if name in shown:
            continue
        clicks = judges.get(name, {}).get("clicks")
        why = "it was not measured"
        if clicks is not None:
            why = (
                f"it prefers the list with the held-out event in {clicks['mean']:.1%} of pairs "
                f"({clicks['low']:.1%} to {clicks['high']:.1%}), which chance may explain"
            )
        raise ValueError(
            f"release.gate.judges names {name!r}, whose agreement is not shown: {why}; "
            f"shown by {path}: {', '.join(shown) or 'none'}"
        )


def known_of(bundle: Bundle) -> Known:
    """Give what a bundle's lists are held against."""
    users, catalogue = bundle.users, bundle.catalogue
    return Known(
        histories=Jagged(torch.from_numpy(users.item_rows), torch.from_numpy(users.offsets)),
        categories=Jagged(
            torch.from_numpy(catalogue.category_values),
            torch.from_numpy(catalogue.category_offsets),
        ),
        num_categories=catalogue.num_category_rows,
        content=bundle.items.content,
    )


def judged_verdicts(
    subject: Subject,
    users: Sequence[str],
    challenger: Sequence[Sequence[str]],
    champion: Sequence[Sequence[str]],
) -> Iterator[Verdict]:
    """Hold the mean score of the challenger's lists against the champion's, by each judge.

    Both are judged by what the challenger knows; items that it does not have are left out.
    """
    if not subject.config.judges:
        return
    known, table = known_of(subject.challenger), subject.challenger.users
    rubrics = rubrics_of(known)
    rows = torch.tensor([table.row_of(one) or 0 for one in users])
    new, old = (_rows(lists, subject) for lists in (challenger, champion))
    for name in subject.config.judges:
        if name not in rubrics:
            yield warning(f"judged: {name}", "the bundle has no data for this rubric")
            continue
        means = [float(rubrics[name](lists, rows, known).mean()) for lists in (new, old)]
        if means[1] <= 0:
            yield warning(f"judged: {name}", "it scores every list of the champion 0")
            continue
        yield at_least(
            f"judged: {name}",
            means[0] / means[1],
            subject.config.min_judged,
            f"mean score of {len(users)} lists {means[0]:.3f}, of the champion {means[1]:.3f}",
        )


def _rows(lists: Sequence[Sequence[str]], subject: Subject) -> Tensor:
    """Find the items' rows, 0 behind the end of a list, [L, k]."""
    found = torch.zeros(len(lists), subject.config.list_length, dtype=torch.int64)
    for place, items in enumerate(lists):
        rows = [row for one in items if (row := subject.challenger.catalogue.row_of(one))]
        found[place, : len(rows)] = torch.tensor(rows, dtype=torch.int64)
    return found
