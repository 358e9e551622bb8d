"""One part of a job: lists of some users in one Parquet file, whole or absent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.scoring.job import FAILED, LISTS, Job
from recsys.data.durable import PARTIAL, digest_of_file, replace_file, write_durably
from serving.recommend import Recommender
from serving.schemas import Request

REPORT_EVERY = 100
"""Users after which a worker says how far it is."""
MAX_MESSAGE = 500
"""Characters that are kept of why a list failed."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Contents of one file."""

    number: int
    num_keys: int
    rows: int
    failed: int
    """Keys without a list, for an error; failed/ names them."""
    degraded: dict[str, int] = field(default_factory=dict)
    """Lists by warning, as in the API's ``degraded``."""
    sha256: str = ""
    made: bool = True
    """True if this run made it."""

    def described(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        said = {name: value for name, value in asdict(self).items() if name != "made"}
        return {"file": f"{LISTS}/{name_file(self.number)}", **said}


def name_file(part: int) -> str:
    """Return the name of a part's file."""
    return f"part-{part:05}.parquet"


def find_part(out: Path, job: Job, number: int) -> Part | None:
    """Read what an earlier run made of a part; None where it is to be made."""
    import polars as pl

    path = out / LISTS / name_file(number)
    if not path.is_file():
        return None
    try:
        found = pl.read_parquet_metadata(path)
        if found["job"] != job.digest:
            return None
        part = Part(**json.loads(found["part"]), sha256=digest_of_file(path), made=False)
    except (pl.exceptions.PolarsError, OSError, KeyError, ValueError, TypeError):
        return None
    # Whoever failed is tried again.
    return part if part.failed == 0 else None


def make_part(
    recommender: Recommender,
    job: Job,
    number: int,
    keys: Sequence[str],
    out: Path,
    progressed: Callable[[int], object] = lambda _: None,
) -> Part:
    """Make the lists of a part and put its file in place."""
    lists = Lists(recommender, job, number)
    unreported = 0
    for key in keys:
        lists.add(key)
        unreported += 1
        if unreported == REPORT_EVERY:
            progressed(unreported)
            unreported = 0
    progressed(unreported)
    failures = out / FAILED / f"{name_file(number).removesuffix('.parquet')}.jsonl"
    if lists.failures:
        failures.parent.mkdir(exist_ok=True)
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in lists.failures)
        write_durably(failures, "".join(lines))
    else:
        failures.unlink(missing_ok=True)
    return lists.write(out / LISTS / name_file(number), len(keys))


class Lists:
    """Lists of a part by column."""

    def __init__(self, recommender: Recommender, job: Job, number: int) -> None:
        self._recommender, self._job, self._number = recommender, job, number
        self._keys: list[str] = []
        self._lengths: list[int] = []
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ("item_id", "score", "source", "semantic_id")
        }
        self.failures: list[dict[str, str]] = []
        self.degraded: Counter[str] = Counter()

    def add(self, key: str) -> None:
        """Make a list; an error is kept with the key and ends nothing."""
        try:
            request = Request.model_validate(self._job.request(key))
            # As `answer` makes it; the clock and what is drawn are the job's.
            made = self._recommender.make(
                request, now_ms=1_000 * self._job.unix_time, seed=self._job.seed(key)
            )
        except Exception as error:
            # Whatever is wrong with one, the others get their lists; the count is in the log line.
            message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
            self.failures.append({"id": key, "error": message})
            return
        reply = made.reply
        self.degraded.update({note.code for note in reply.degraded})
        self._keys.append(key)
        self._lengths.append(len(reply.items))
        for name, column in self._columns.items():
            column += [getattr(item, name) for item in reply.items]

    def write(self, path: Path, num_keys: int) -> Part:
        """Write the file under a temporary name and rename it."""
        import polars as pl

        part = Part(
            number=self._number,
            num_keys=num_keys,
            rows=sum(self._lengths),
            failed=len(self.failures),
            degraded=dict(sorted(self.degraded.items())),
        )
        said = asdict(part)
        del said["sha256"], said["made"]
        metadata = {"job": self._job.digest, "part": json.dumps(said, sort_keys=True)}
        frame = self._frame(pl)
        path.parent.mkdir(exist_ok=True)
        replace_file(path, lambda partial: frame.write_parquet(partial, metadata=metadata))
        return Part(**said, sha256=digest_of_file(path))

    def _frame(self, pl: Any) -> Any:
        """The columns of `Recommender.recommend`, and which surface and part."""
        catalogue = self._recommender.bundle.catalogue
        types = {"score": pl.Float64}
        items = pl.DataFrame(
            {
                name: pl.Series(values, dtype=types.get(name, pl.String))
                for name, values in self._columns.items()
            }
        )
        ids = self._columns["item_id"]
        texts = {one: catalogue.display_texts[catalogue.row_of(one) or 0] for one in set(ids)}
        keys, lengths = pl.Series(self._keys, dtype=pl.String), np.array(self._lengths, np.int64)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        named = "query_item_id" if self._job.key == "item_id" else "user_id"
        return items.select(
            keys[np.repeat(np.arange(len(keys)), lengths)].alias(named),
            pl.Series("rank", np.arange(len(ids)) - starts + 1, dtype=pl.Int64),
            "item_id",
            pl.Series("display_text", [texts[one] for one in ids], dtype=pl.String),
            "score",
            "source",
            "semantic_id",
            pl.lit(self._job.surface).alias("surface"),
            pl.lit(self._number, dtype=pl.Int32).alias("partition"),
        )


def sweep(out: Path) -> None:
    """Remove what a killed run left half written."""
    for folder in (out, out / LISTS, out / FAILED):
        for leftover in folder.glob(f"{PARTIAL}*"):
            leftover.unlink()
