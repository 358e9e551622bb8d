"""One part of a job: lists of some users in one Parquet file, whole or absent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.scoring.job import FAILED, LISTS, Job
from recsys.data.durable import PARTIAL, digest_of_file, replace_file, write_durably
from serving.recommend import Recommender
from serving.schemas import Request

if TYPE_CHECKING:
    import polars as pl

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
    recommender: Recommender, job: Job, number: int, keys: Sequence[str], out: Path
) -> Part:
    """Make the lists of a part and put its file in place.

    An error ends one list: it is kept with the key, and the next run tries the key again.
    """
    rows: list[tuple[Any, ...]] = []
    failures: list[dict[str, str]] = []
    degraded = Counter[str]()
    for key in keys:
        try:
            request = Request.model_validate(job.request(key))
            # As `answer` makes it; the clock and the draws are the job's.
            made = recommender.make(request, now_ms=1_000 * job.unix_time, seed=job.seed(key))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
            failures.append({"id": key, "error": message})
            continue
        degraded.update({note.code for note in made.reply.degraded})
        rows += [
            (key, rank, item.item_id, item.score, item.source, item.semantic_id)
            for rank, item in enumerate(made.reply.items, 1)
        ]
    path = out / FAILED / f"part-{number:05}.jsonl"
    if failures:
        path.parent.mkdir(exist_ok=True)
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in failures)
        write_durably(path, "".join(lines))
    else:
        path.unlink(missing_ok=True)
    part = Part(
        number=number,
        num_keys=len(keys),
        rows=len(rows),
        failed=len(failures),
        degraded=dict(sorted(degraded.items())),
    )
    said = asdict(part)
    del said["sha256"], said["made"]
    metadata = {"job": job.digest, "part": json.dumps(said, sort_keys=True)}
    table = make_table(recommender, job, number, rows)
    path = out / LISTS / name_file(number)
    path.parent.mkdir(exist_ok=True)
    replace_file(path, lambda partial: table.write_parquet(partial, metadata=metadata))
    return replace(part, sha256=digest_of_file(path))


def make_table(
    recommender: Recommender, job: Job, number: int, rows: Sequence[tuple[Any, ...]]
) -> pl.DataFrame:
    """Make the columns of `Recommender.recommend`, with surface and part."""
    import polars as pl

    catalogue = recommender.bundle.catalogue
    named = "query_item_id" if job.key == "item_id" else "user_id"
    text, whole = pl.String(), pl.Int64()
    schema = {named: text, "rank": whole, "item_id": text, "score": pl.Float64()}
    schema |= {"source": text, "semantic_id": text}
    items = pl.DataFrame(rows, schema=schema, orient="row")
    ids = items["item_id"].to_list()
    texts = {one: catalogue.display_texts[catalogue.row_of(one) or 0] for one in set(ids)}
    return items.select(
        *(named, "rank", "item_id"),
        pl.Series("display_text", [texts[one] for one in ids], dtype=pl.String),
        *("score", "source", "semantic_id"),
        pl.lit(job.surface).alias("surface"),
        pl.lit(number, dtype=pl.Int32).alias("partition"),
    )


def sweep(out: Path) -> None:
    """Remove what a killed run left half written."""
    for folder in (out, out / LISTS, out / FAILED):
        for leftover in folder.glob(f"{PARTIAL}*"):
            leftover.unlink()
