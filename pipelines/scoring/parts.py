"""One part of a job: lists of some users in one Parquet file, whole or absent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    for done, key in enumerate(keys, 1):
        lists.add(key)
        if done % REPORT_EVERY == 0:
            progressed(REPORT_EVERY)
    progressed(len(keys) % REPORT_EVERY)
    failures = out / FAILED / f"{name_file(number).removesuffix('.parquet')}.jsonl"
    if lists.failures:
        failures.parent.mkdir(exist_ok=True)
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in lists.failures)
        write_durably(failures, "".join(lines))
    else:
        failures.unlink(missing_ok=True)
    return lists.write(out / LISTS / name_file(number), len(keys))


class Lists:
    """Lists of a part, a row an item."""

    def __init__(self, recommender: Recommender, job: Job, number: int) -> None:
        self._recommender, self._job, self._number = recommender, job, number
        self._rows: list[tuple[Any, ...]] = []
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
        self.degraded.update({note.code for note in made.reply.degraded})
        self._rows += [
            (key, rank, item.item_id, item.score, item.source, item.semantic_id)
            for rank, item in enumerate(made.reply.items, 1)
        ]

    def write(self, path: Path, num_keys: int) -> Part:
        """Write the file under a temporary name and rename it."""
        import polars as pl

        part = Part(
            number=self._number,
            num_keys=num_keys,
            rows=len(self._rows),
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
        named = "query_item_id" if self._job.key == "item_id" else "user_id"
        text, number = pl.String(), pl.Int64()
        schema = {named: text, "rank": number, "item_id": text, "score": pl.Float64()}
        schema |= {"source": text, "semantic_id": text}
        items = pl.DataFrame(self._rows, schema=schema, orient="row")
        ids = items["item_id"].to_list()
        texts = {one: catalogue.display_texts[catalogue.row_of(one) or 0] for one in set(ids)}
        return items.select(
            *(named, "rank", "item_id"),
            pl.Series("display_text", [texts[one] for one in ids], dtype=pl.String),
            *("score", "source", "semantic_id"),
            pl.lit(self._job.surface).alias("surface"),
            pl.lit(self._number, dtype=pl.Int32).alias("partition"),
        )


def sweep(out: Path) -> None:
    """Remove what a killed run left half written."""
    for folder in (out, out / LISTS, out / FAILED):
        for leftover in folder.glob(f"{PARTIAL}*"):
            leftover.unlink()
