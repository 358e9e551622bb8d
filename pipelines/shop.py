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

MAX_EXPLAINED = 100
MISSING = {"nan", "NaT", "<NA>"}
"""Texts of the values by which pandas marks missing ones."""
COLUMNS = ("rank", "item_id", "title", "score", "source")


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
        self,
        bundle: Path,
        workspace: Path | None = None,
        *,
        pandas: bool = False,
        model: str | None = None,
    ) -> None:
        """Take a bundle, and the workspace of the run that made it if there is one.

        Args:
            model: Model that makes the lists alone; None blends those of the bundle.
        """
        self.bundle, self.workspace, self._pandas = bundle, workspace, pandas
        self.model = model
        self._recommender: Recommender | None = None

    @classmethod
    def fit(
        cls,
        events: Table,
        items: Table | None = None,
        users: Table | None = None,
        *,
        model: str | None = None,
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
            model: A model of the catalogue to fit and to make lists alone, such as ``sequence``;
                None plans models, blend and ranker for the budget.
            budget: Time to spend, such as ``5m``; a first bundle is there within a minute. With a
                model its own settings decide.
            columns: Columns of a frame of events that are not found: ``{"user_id": "q1"}``.
            settings: Sections of a run's TOML file: ``{"two_tower": {"embedding_dim": 64}}``.
            folder: Where everything is kept; a temporary folder without it. A second fit in the
                same folder repeats only what has changed.
            progress: Whether the plan, bars and results are printed.

        Raises:
            ValueError: Columns that are not found, values that cannot be read; says what to do.
            RefusedError: The release gate refused every bundle.
        """
        from pipelines.cli.options import find_bundle
        from pipelines.cli.run import run_recorded
        from pipelines.datasets.init_file import write_config
        from pipelines.engine.history import recorded
        from pipelines.presets.resolve import ConfigSources

        alone = None if model is None else _only(model, (settings or {}).get("models", ()))
        place = Path(folder or tempfile.mkdtemp(prefix="recsys-shop-"))
        place.mkdir(parents=True, exist_ok=True)
        try:
            names = {theirs: ours for ours, theirs in (columns or {}).items()}
            places = [_as_place(events, place / "events", names)]
            others = {"items": items, "users": users}
            places += [
                _as_place(one, place / n, {}) for n, one in others.items() if one is not None
            ]
            config = place / "shop.toml"
            write_config(places, config, force=True)
            planned = {"auto": {"budget": budget}} if alone is None else {}
            sources = ConfigSources(
                path=config,
                assignments=alone or (),
                values={**planned, **(settings or {})},
                workspace=place / "run",
            )
            with recorded(None, "fit") as recording, _printing(progress):
                run_recorded(recording, sources, ([], None, []), show_progress=progress)
        except BaseException:
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)
            raise
        run, is_pandas = place / "run", type(events).__module__.partition(".")[0] == "pandas"
        shop = cls(find_bundle(run), run, pandas=is_pandas, model=model)
        if folder is None:
            weakref.finalize(shop, shutil.rmtree, place, ignore_errors=True)
        return shop

    @classmethod
    def load(cls, bundle: str | Path, *, model: str | None = None) -> Shop:
        """Verify and load a bundle, or the one that a run serves; ``model`` makes lists alone."""
        from pipelines.cli.options import find_bundle

        shop = cls(find_bundle(Path(bundle)), model=model)
        _ = shop.recommender
        return shop

    @property
    def recommender(self) -> Recommender:
        """The recommender that a server asks too."""
        from serving.recommend import Recommender

        if self._recommender is None:
            one = None if self.model is None else _load_one(self.bundle, self.model)
            self._recommender = one or Recommender.load(self.bundle)
        return self._recommender

    def recommend(
        self,
        users: Iterable[object] | None = None,
        *,
        history: Iterable[object] | None = None,
        k: int = 10,
        where: str | None = None,
    ) -> Table:
        """Return a list for each user, or one for a history of item ids, oldest first.

        Args:
            where: Which items may be listed, such as ``price < 50`` (docs/filters.md).

        Returns:
            Columns user_id (not for a history), rank, item_id, title, score, source.
        """
        given = history if users is None else users
        if given is None or (users is not None and history is not None):
            raise ValueError("give users or a history, not both and not neither")
        if isinstance(given, str):
            raise ValueError(f"ids are given as a list, got the text {given!r}; give [{given!r}]")
        ids, options = [*map(str, given)], {"k": k, "filter": {"where": where}}
        if users is None:
            return self._frame(_rows(self._answer(session=ids, **options)), COLUMNS)
        lists = ((user, self._answer(user_id=user, **options)) for user in ids)
        rows = [{"user_id": user, **row} for user, reply in lists for row in _rows(reply)]
        return self._frame(rows, ("user_id", *COLUMNS))

    def similar(self, item: object, k: int = 10) -> Table:
        """Return items like an item; columns as of ``recommend``.

        With one model, what it ranks first for a history of that item.
        """
        fields: dict[str, Any] = {"surface": "related", "item_id": str(item)}
        if self.model is not None:
            fields = {"session": [str(item)]}
        return self._frame(_rows(self._answer(**fields, k=k)), COLUMNS)

    def search(self, text: str, k: int = 10) -> Table:
        """Return items that fit words of titles; columns as of ``recommend``."""
        return self._frame(_rows(self._answer(surface="search", query=text, k=k)), COLUMNS)

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
        from pipelines.publishing.comparison import served_metrics, served_row
        from recsys.fitting.queries import GIVEN

        workspace = self._of_run("evaluate")
        found = read_json(workspace / "evaluate" / "metrics.json")[GIVEN]["test"]
        if not found:
            raise ValueError("no user has a held-out event, so nothing was measured")
        served = served_row(served_metrics(found, workspace / "train_ranker" / GIVEN))
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
        where = {"bundles": place.parent, "bundle": place.name, "host": host, "port": port}
        run_server(Settings.from_environment(None, **where))

    def _answer(self, **fields: Any) -> Reply:
        from serving.schemas import read_request

        return self.recommender.answer(read_request(**fields))

    def _of_run(self, what: str) -> Path:
        if self.workspace is None:
            raise ValueError(f"a loaded bundle has no run to {what}; fit it here")
        return self.workspace

    def _frame(
        self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> Table:
        if self._pandas:
            return import_module("pandas").DataFrame(list(rows), columns=columns)
        import polars as pl

        return pl.DataFrame(list(rows), schema=columns)


@contextmanager
def _printing(wanted: bool) -> Iterator[None]:
    """Print, or keep quiet."""
    with Path(os.devnull).open("w") as nowhere:
        if wanted:
            yield
            return
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def _only(model: str, own: Iterable[str] = ()) -> list[str]:
    """Return the settings that fit a model, an ``own`` one too, next to what every bundle has."""
    from pipelines.config.run import RunConfig
    from recsys.models.names import MODELS

    known = {one.name: one.training or one.section for one in MODELS if not one.variant_of}
    known |= dict.fromkeys(own, "")
    if model not in known:
        raise ValueError(f"no model {model!r} in the catalogue; there are {', '.join(known)}")
    config = RunConfig(workspace=Path())
    switches = [one for one in known.values() if hasattr(getattr(config, one, None), "enabled")]
    given = {f"{one}.enabled": one == known[model] for one in switches}
    # Its measurements are read, whatever they are.
    given |= {"auto.enabled": False, "release.gate.enabled": False}
    bounds = ["release.min_gain_over_popularity=-1.0"]
    return [f"{key}={str(value).lower()}" for key, value in given.items()] + bounds


def _load_one(bundle: Path, model: str) -> Recommender:
    """Load a bundle whose lists one of its models makes."""
    from serving.bundle.load import load_bundle
    from serving.configuration.file import check_configuration
    from serving.recommend import Recommender
    from serving.settings import ServingOptions
    from serving.sources import sources_of

    options, loaded = ServingOptions(profile="full"), load_bundle(bundle)
    if model not in (there := sources_of(loaded, options, learned_content=True)):
        raise ValueError(f"{bundle} has no model {model!r}; it has {', '.join(there)}")
    configuration = check_configuration({"surfaces": {"home": {"sources": {model: 1.0}}}})
    return Recommender(loaded, options, configuration=configuration)


def _rows(reply: Reply) -> Iterator[dict[str, Any]]:
    for rank, one in enumerate(reply.items, start=1):
        yield {"rank": rank, **{name: getattr(one, name) for name in COLUMNS[1:]}}


def _as_place(table: Table, target: Path, names: Mapping[str, str]) -> str:
    """Return a path or an address, or write a frame with other names of columns as Parquet."""
    if isinstance(table, str | Path):
        if names:
            raise ValueError(f"columns are for frames; read {table} into one, or rename in it")
        return str(table)
    table = _read_frame(table, target.name)
    if missing := names.keys() - set(table.columns):
        raise ValueError(f"columns names {sorted(missing)}; the frame has {table.columns}")
    path = target.with_suffix(".parquet")
    table.rename(names).write_parquet(path)
    return str(path)


def _read_frame(table: Any, name: str) -> pl.DataFrame:
    """Read a frame or an Arrow table; columns get types that files have.

    Values of several types and categories become texts, whole floats of pandas integers (it has no
    missing ones), and a named index of pandas a column.
    """
    import polars as pl

    if hasattr(table, "to_dict") and hasattr(table, "index"):
        table = table.reset_index() if any(table.index.names) else table
        try:
            frame = pl.DataFrame(table)
        # Arrow refuses columns of several types, and may not be installed.
        except (TypeError, ValueError, ImportError):
            frame = pl.DataFrame([_column(str(one), table[one].tolist()) for one in table])
        # Arrow writes UUIDs as bytes.
        pairs = zip(frame, table, strict=True)
        ids = [_column(one.name, table[at].tolist()) for one, at in pairs if one.dtype == pl.Binary]
        table = frame.with_columns(*ids, *(_whole(one) for one in frame if one.dtype.is_float()))
    elif hasattr(table, "__arrow_c_stream__"):
        table = pl.DataFrame(table)
    elif isinstance(table, pl.LazyFrame):
        table = table.collect()
    if not isinstance(table, pl.DataFrame):
        raise ValueError(
            f"{name} are a {type(table).__name__}; give a frame of Polars or pandas, an Arrow "
            "table, or the path of a file"
        )
    mixed = [_column(one.name, one.to_list()) for one in table if one.dtype == pl.Object]
    return table.with_columns(mixed).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column of Python values; those of several types become texts."""
    import polars as pl

    known = [None if str(one) in MISSING and not isinstance(one, str) else one for one in values]
    types = {type(one) for one in known if one is not None}
    if len(types) == 1 or types <= {bool, int, float}:
        column = pl.Series(name, known, strict=False)
        if column.dtype != pl.Object:
            return column
    return pl.Series(name, [None if one is None else str(one) for one in known], pl.String)


def _whole(column: pl.Series) -> pl.Series:
    """Return a column of whole numbers and missing ones as integers."""
    known = column.fill_nan(None)
    exact = ((known == known.round()) & (known.abs() < 2**53)).all()
    return known.cast(int) if exact else column
