"""A shop's recommender in Python: fit on tables, ask for lists, look at the report, serve.

The plan, stages and bundle are those of ``recsys run``; what is kept lies in one folder.
"""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from serving.recommend import Recommender
    from serving.schemas import Reply

    Table = pl.DataFrame | Any
    """A frame of Polars or pandas, an Arrow table, the path of a file, or a database's table."""

TABLES = ("events", "items", "users")
MAX_EXPLAINED = 100


@dataclass(frozen=True)
class Report:
    """The report of a run; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="800" frameborder="0"></iframe>'


class Shop:
    """A fitted recommender.

    Frames that it returns are of Polars, or of pandas if it was fitted on frames of pandas.
    """

    def __init__(
        self, bundle: Path, workspace: Path | None = None, *, pandas: bool = False
    ) -> None:
        """Take a bundle, and the workspace of the run that made it if there is one."""
        self.bundle, self.workspace, self._pandas = bundle, workspace, pandas
        self._recommender: Recommender | None = None

    @classmethod
    def fit(
        cls,
        events: Table,
        items: Table | None = None,
        users: Table | None = None,
        *,
        budget: str = "5m",
        columns: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        progress: bool = True,
    ) -> Shop:
        """Fit on events, and on a catalogue and a table of users where there are some.

        Args:
            events: Users, items and times, one row an event. Columns are found by their names and
                values, as by ``recsys data init``.
            budget: Time to spend, such as ``5m``; a first bundle is there within a minute.
            columns: Columns of a frame of events that are not found: ``{"user_id": "q1"}``.
            settings: Sections of a run's TOML file: ``{"two_tower": {"embedding_dim": 64}}``.
            folder: Where everything is kept; a temporary folder without it. A second fit in the
                same folder repeats only what has changed.
            progress: Whether the plan, bars and results are printed.

        Raises:
            ValueError: Columns that are not found, values that cannot be read; says what to do.
            RefusedError: The release gate refused every bundle.
        """
        from pipelines.cli.run import run_recorded
        from pipelines.datasets.init_file import write_config
        from pipelines.engine.history import recorded
        from pipelines.engine.workspace import bundles_dir
        from pipelines.presets.resolve import ConfigSources
        from serving.bundle.manifest import CURRENT

        place = Path(folder or tempfile.mkdtemp(prefix="recsys-shop-"))
        place.mkdir(parents=True, exist_ok=True)
        given = dict(zip(TABLES, (events, items, users), strict=True))
        names = {"events": {theirs: ours for ours, theirs in (columns or {}).items()}}
        places = [
            _as_place(one, place / name, names.get(name, {}))
            for name, one in given.items()
            if one is not None
        ]
        config = place / "shop.toml"
        write_config(places, config, force=True)
        values = {"auto": {"budget": budget}, **(settings or {})}
        sources = ConfigSources(path=config, values=values, workspace=place / "run")
        with recorded(None, "fit") as recording, _printing(progress):
            run_recorded(recording, sources, ([], None, []), show_progress=progress)
        shop = cls(
            bundles_dir(sources.latest()) / CURRENT,
            place / "run",
            pandas=type(events).__module__.partition(".")[0] == "pandas",
        )
        if folder is None:
            weakref.finalize(shop, shutil.rmtree, place, ignore_errors=True)
        return shop

    @classmethod
    def load(cls, bundle: str | Path) -> Shop:
        """Verify and load a bundle that ``save`` or a run wrote."""
        shop = cls(Path(bundle))
        _ = shop.recommender
        return shop

    @property
    def recommender(self) -> Recommender:
        """The recommender that a server asks too."""
        from serving.recommend import Recommender

        if self._recommender is None:
            self._recommender = Recommender.load(self.bundle)
        return self._recommender

    def recommend(
        self,
        users: Sequence[object] | None = None,
        *,
        history: Sequence[object] | None = None,
        k: int = 10,
        where: str | None = None,
    ) -> Table:
        """Return a list for each user, or one for a history of item ids, oldest first.

        Args:
            where: Which items may be listed, such as ``price < 50`` (docs/filters.md).

        Returns:
            Columns user_id (not for a history), rank, item_id, title, score, source.
        """
        if (users is None) == (history is None):
            raise ValueError("give users or a history, not both and not neither")
        if history is not None:
            reply = self._answer(
                session=[str(one) for one in history], k=k, filter={"where": where}
            )
            return self._frame(_rows(reply))
        if isinstance(users, str):
            raise ValueError(f"users is a list of ids, got the text {users!r}; give [{users!r}]")
        rows = [
            {"user_id": user, **row}
            for user in map(str, users or ())
            for row in _rows(self._answer(user_id=user, k=k, filter={"where": where}))
        ]
        return self._frame(rows)

    def similar(self, item: object, k: int = 10) -> Table:
        """Return items like an item; columns as of ``recommend``."""
        return self._frame(_rows(self._answer(surface="similar", item_id=str(item), k=k)))

    def search(self, text: str, k: int = 10) -> Table:
        """Return items that fit words of titles; columns as of ``recommend``."""
        return self._frame(_rows(self._answer(surface="search", query=text, k=k)))

    def explain(self, user: object, item: object) -> str:
        """Return the reason why a user's list has an item, or that its first 100 do not."""
        reply = self._answer(user_id=str(user), k=MAX_EXPLAINED, explain=True)
        for rank, one in enumerate(reply.items, start=1):
            if one.item_id == str(item):
                return f"place {rank}: {one.reason}"
        return f"item {item} is not among the first {len(reply.items)} of user {user}"

    def evaluate(self) -> Table:
        """Return each model's metrics on held-out events that no model saw.

        Returns:
            Columns model, served, then a column a metric, such as ``ndcg@10``; the best first.
        """
        from pipelines.engine.artifacts import read_json
        from pipelines.inputs.tensors import released_order
        from pipelines.publishing.comparison import served_metrics, served_row

        workspace = self._of_run("evaluate")
        order = released_order(workspace / "build_features")
        found = read_json(workspace / "evaluate" / "metrics.json")[order]["test"]
        if not found:
            raise ValueError("no user has a held-out event, so nothing was measured")
        served = served_row(served_metrics(found, workspace / "train_ranker" / order))
        rows = [{"model": name, "served": name == served, **found[name]} for name in found]
        return self._frame(sorted(rows, key=lambda row: -row["ndcg@10"]))

    def report(self) -> Report:
        """Return the report of the run, which a notebook shows; ``path`` is its file."""
        from pipelines.stages.report import report_path

        path = report_path(self._of_run("report"))
        if not path.exists():
            raise ValueError("the budget was too short for a report; fit with a larger one")
        return Report(path)

    def save(self, path: str | Path) -> Path:
        """Copy the bundle, which ``load`` and ``recsys serve`` read."""
        target = Path(path)
        if target.exists():
            raise ValueError(f"{target} is there already; name a folder that is not")
        shutil.copytree(self.bundle.resolve(), target)
        return target

    def serve(self, port: int = 8000, host: str = "127.0.0.1") -> None:
        """Answer requests over HTTP until it is interrupted."""
        from serving.server.serve import serve as run_server
        from serving.settings import Settings

        place = self.bundle.resolve()
        given: dict[str, object] = {"host": host, "port": port}
        run_server(
            Settings.from_environment(None, bundles=place.parent, bundle=place.name, **given)
        )

    def _answer(self, **fields: Any) -> Reply:
        from pipelines.cli.serve import checked_request

        return self.recommender.answer(checked_request(**fields))

    def _of_run(self, what: str) -> Path:
        if self.workspace is None:
            raise ValueError(f"a loaded bundle has no run to {what}; fit it here")
        return self.workspace

    def _frame(self, rows: Iterable[Mapping[str, Any]]) -> Table:
        if self._pandas:
            return import_module("pandas").DataFrame(list(rows))
        import polars as pl

        return pl.DataFrame(list(rows))


@contextmanager
def _printing(wanted: bool) -> Iterator[None]:
    """Print, or keep quiet."""
    with Path(os.devnull).open("w") as nowhere:
        if wanted:
            yield
            return
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def _rows(reply: Reply) -> Iterator[dict[str, Any]]:
    for rank, one in enumerate(reply.items, start=1):
        yield {
            "rank": rank,
            "item_id": one.item_id,
            "title": one.title,
            "score": one.score,
            "source": one.source,
        }


def _as_place(table: Table, target: Path, names: Mapping[str, str]) -> str:
    """Return a path or an address, or write a frame with other names of columns as Parquet."""
    import polars as pl

    if isinstance(table, str | Path):
        if names:
            raise ValueError(f"columns are for frames; read {table} into one, or rename in it")
        return str(table)
    if not isinstance(table, pl.DataFrame):
        if hasattr(table, "__arrow_c_stream__"):
            table = pl.DataFrame(table)
        elif hasattr(table, "to_dict"):
            table = pl.DataFrame(table.to_dict("list"))
        else:
            raise ValueError(
                f"{target.name} are a {type(table).__name__}; give a frame of Polars or pandas, an "
                "Arrow table, or the path of a file"
            )
    if missing := names.keys() - set(table.columns):
        raise ValueError(f"columns names {sorted(missing)}; the frame has {table.columns}")
    path = target.with_suffix(".parquet")
    table.rename(names).write_parquet(path)
    return str(path)
