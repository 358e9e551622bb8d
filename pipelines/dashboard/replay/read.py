"""Read a backtest: its document if it is finished, otherwise what its steps say so far."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.backtest.run import DOCUMENT, FOLDER
from pipelines.dashboard.context import Context
from pipelines.dashboard.replay.unfinished import measured_so_far
from pipelines.dashboard.workspaces.files import (
    UnreadableError,
    changed_at,
    key_of,
    names_in,
    read_table,
)
from pipelines.dashboard.workspaces.find import is_workspace
from pipelines.pages.backtest.replayed import Backtest, Found
from recsys.replay.run import DESCRIPTION


def backtests(context: Context) -> list[Found]:
    """List all backtests, the newest first."""
    found = [
        context.cache.get(
            ("backtest", str(path)),
            (path / DOCUMENT, path / DESCRIPTION, path / "steps"),
            partial(_found, path),
        )
        for path in context.stores.backtests()
    ]
    return sorted(found, key=lambda one: (str(one.time), one.name), reverse=True)


def _found(path: Path) -> Found:
    whole = path.resolve()
    judged = None
    try:
        description = read_table(path / DESCRIPTION) or {}
        steps = [one for one in description["steps"] if one["number"] > 0]
        judged = (str(description["data_digest"]), steps[0]["begin"], steps[-1]["end"])
    except (UnreadableError, LookupError, TypeError):
        pass
    return Found(
        key=key_of(str(whole)),
        name=f"{whole.parent.name}/{whole.name}" if whole.name == FOLDER else whole.name,
        path=path,
        run=key_of(str(whole.parent)) if is_workspace(set(names_in(whole.parent))) else "",
        time=changed_at(path / DOCUMENT) or changed_at(path / "steps"),
        finished=(path / DOCUMENT).exists(),
        judged=judged,
    )


def read(context: Context, found: Found) -> Backtest:
    """Read the numbers of a backtest; of an unfinished one, measure the steps that there are.

    Nothing is raised: what is wrong is said in `Backtest.problem`.
    """
    path, name = found.path, found.name
    assert path is not None
    try:
        if found.finished:
            return context.cache.get(
                ("numbers of a backtest", str(path)),
                (path / DOCUMENT,),
                lambda: Backtest(found=found, document=_checked(read_table(path / DOCUMENT) or {})),
            )
        description = read_table(path / DESCRIPTION) or {}
        document = measured_so_far(context, path, description)
        return Backtest(found=found, document=document)
    except UnreadableError as error:
        return Backtest(found=found, problem=f"{name}: {error}")
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        problem = (
            f"{name} cannot be read: it was written by another version of recsys, or by hand "
            f"({type(error).__name__}: {error}); recsys backtest writes its document anew"
        )
        return Backtest(found=found, problem=problem)


def _checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that a document has what pages read.

    Raises:
        KeyError: A part is missing.
    """
    for name in ("metric", "policies", "summary", "leads"):
        document[name]
    for names, parts in (
        (("number", "begin", "num_queries"), document["steps"]),
        (("policy", "row", "step"), document["rows"]),
        (("policy", "row", "step", "slice", "metrics"), document["slices"]),
    ):
        for part in parts:
            for name in names:
                part[name]
    for part in document["rows"]:
        if "error" not in part:
            part["metrics"], part["model_age_days"], part["fit_seconds"]
    return document
