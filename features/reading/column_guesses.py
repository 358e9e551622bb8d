"""Guess what a column holds: by its name, and how it writes times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from features.events import as_micros
from features.schema import SourceConfig, TimeUnit

EVENT_NAMES = {
    "user_id": (
        "user_id user uid customer_id customer client_id client visitor_id visitor member_id "
        "account_id buyer_id shopper_id person_id reviewer_id reviewer kunde kunden_nr "
        "kundennummer kunden_id usuario utilisateur device_id cookie_id session_id"
    ),
    "item_id": (
        "item_id item product_id product sku article_id article asin parent_asin movie_id movie "
        "book_id isbn track_id song_id video_id listing_id content_id news_id stock_code "
        "goods_id offer_id game_id recipe_id artikel artikel_nr artikelnummer produkt producto "
        "produit"
    ),
    "event_time": (
        "event_time timestamp time datetime date created_at ts unix_time unix_timestamp "
        "occurred_at order_date invoice_date purchase_date review_time unix_review_time datum "
        "zeit zeitstempel zeitpunkt fecha viewed_at when"
    ),
    "sequence_index": "sequence_index position sequence order_index step",
    "event_type": (
        "event_type event action behavior behaviour behavior_type interaction activity verb "
        "aktion type"
    ),
    "value": "value rating score stars overall bewertung amount betrag",
    "domain": "domain department_id storefront vertical",
    "session_id": "session_id session visit_id",
    "request_id": "request_id impression_id slate_id",
    "slot": "slot",
    "propensity": "propensity propensity_score",
}
"""Known names of each column of events, the most telling first; many are of public logs."""
DEEDS = (
    "view click cart basket addtocart purchase buy bought order transaction checkout play listen "
    "watch read wish wishlist favorite favourite like dislike hide skip save bookmark share "
    "follow rate rating review download install remove return impression pageview visit"
)
FILLERS = "add to from the of on item product page detail list begin event"
"""Words of event types: what was done, and what may surround it."""
ITEM_NAMES = {
    "title": (
        "title name product_name item_name movie_title titel bezeichnung produktname nombre "
        "titre headline"
    ),
    "description": "description desc beschreibung summary abstract text",
    "categories": (
        "categories category genres genre class tags kategorie kategorien department product_type"
    ),
    "brand": "brand manufacturer marke hersteller maker",
    "price": "price preis unit_price list_price precio prix cost",
    "available_from": "available_from release_date released_at launch_date",
    "domain": "domain",
}
FILE_WORDS = {
    "events": (
        "event interaction rating click order transaction log view purchase review impression "
        "inter bestellung"
    ),
    "items": "item product movie article catalog book sku artikel produkt",
    "users": "user customer member people client kunde",
}
"""Words in a file's name that tell its table."""
SAME_OF_EACH, MOST_TYPES = 1.05, 50
"""Most values of a column for each item that it describes, and of a column of event types."""
FIRST_SECOND, LAST_SECOND = 631_152_000, 4_102_444_800  # 1990 to 2100
READABLE_SHARE = 0.99
SIX_DIGITS = r"^\s*\d(?:\D*\d){5}"
"""Digits that every date has; no format is tried on texts without them."""
DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y%m%d")
CLOCKS = ("", " %H:%M:%S", " %H:%M", " %I:%M %p", " %I:%M:%S %p", "%H%M%S")


def plain_name(name: str) -> str:
    """Write a column name as lower_snake_case, without a trailing ``:type``."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.split(":")[0].strip())
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def name_score(column: str, known: str) -> float:
    """Score how well a column's name fits: 1 to 2 for a known name, less for a part, 0 for none."""
    plain, names = plain_name(column), known.split()
    squeezed = {name.replace("_", ""): place for place, name in enumerate(names)}
    if (place := squeezed.get(plain.replace("_", ""))) is not None:
        return 2 - place / len(names)
    words = plain.split("_")
    for place, name in enumerate(names):
        if len(name) > 2 and name in (words[0], words[-1], "_".join(words[-2:])):
            return 0.9 - 0.4 * place / len(names)
    return 0.0


def are_deeds(column: pl.Series) -> bool:
    """Return True if nearly all texts of a column say what a user did, in two ways or more."""
    deeds, fillers = set(DEEDS.split()), FILLERS.split()

    def is_deed(value: str) -> bool:
        words = [word for word in plain_name(value).split("_") if word not in fillers]
        return bool(words) and all(deeds & {one, one.rstrip("sd"), one[:-2]} for one in words)

    found = [value for value in column.unique() if is_deed(value)]
    return len(found) > 1 and int(column.is_in(found).sum()) >= READABLE_SHARE * len(column)


def find_types(sample: pl.DataFrame, columns: dict[str, str], free: list[str]) -> list[str]:
    """Find the column of event types by its values, if no name tells it; return what is not sure.

    A column that says the same of each item is none, whatever its name.

    Args:
        columns: Our columns and the file's; event_type is added, or removed if it is none.
        free: The file's columns that none of ours is.
    """
    named, notes = columns.get("event_type"), []

    def describes(ours: str, column: str) -> bool:
        ids = columns[ours]
        pairs, num_ids = sample.select(ids, column).drop_nulls().n_unique(), sample[ids].n_unique()
        return pairs <= SAME_OF_EACH * num_ids and 2 * num_ids <= sample.height

    for column in [named] if named else free:
        values = sample[column].drop_nulls()
        if values.dtype != pl.String or not 1 < values.n_unique() <= MOST_TYPES:
            continue
        known = ", ".join(values.unique().sort().head(3))
        if are_deeds(values):
            columns.setdefault("event_type", column)
        elif named:
            if describes("item_id", column):
                del columns["event_type"]
                notes.append(f"column {column!r} ({known}) describes items: it is not read")
        elif values.str.contains(r"^[\p{L} _-]{2,30}$").all() and not (
            describes("item_id", column) or describes("user_id", column)
        ):
            line = f'event_type = "{column}" in [data.columns]'
            notes.append(f"if column {column!r} ({known}) is what was done, write {line}")
    return notes


def kind_of_file(stem: str) -> str | None:
    """Guess events, items or users from a file's name."""
    plain = plain_name(stem)
    for kind, words in FILE_WORDS.items():
        if any(word in plain for word in words.split()):
            return kind
    return None


FORMATS = (*(day + clock for day in DAYS for clock in CLOCKS), "%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, kw_only=True)
class TimeGuess:
    """How to read a column as times."""

    time_unit: TimeUnit = "s"
    time_format: str | None = None
    why: str
    other_formats: tuple[str, ...] = ()
    """Formats that read the column as well, as day and month that could be swapped."""
    has_zone: bool = True


def guess_time(column: pl.Series) -> TimeGuess | None:
    """Guess how a sample of one column is to be read as time; None where it is no time."""
    known = column.drop_nulls()
    if known.is_empty() or known.dtype == pl.Boolean or known.dtype.is_nested():
        return None
    if isinstance(known.dtype, pl.Date | pl.Datetime):
        zone = isinstance(known.dtype, pl.Datetime) and known.dtype.time_zone is not None
        return TimeGuess(why=f"its type is {known.dtype}", has_zone=zone)
    numbers = known.cast(pl.Float64, strict=False)
    if known.dtype.is_numeric() or numbers.null_count() == 0:
        found = _guess_unit(numbers)
        if found is not None:
            return found
    if known.dtype.is_float() or not (known.dtype == pl.String or known.dtype.is_integer()):
        return None
    texts = known.cast(pl.String)
    if int(texts.str.contains(SIX_DIGITS).sum()) < READABLE_SHARE * len(texts):
        return None
    if numbers.null_count() and _readable(texts, None):
        zone = texts.str.contains(r"(Z|[+-]\d\d:?\d\d)$").mean() == 1
        return TimeGuess(why=f"{texts[0]!r} is an ISO time", has_zone=zone)
    fitting = [one for one in FORMATS if _readable(texts, one)]
    if not fitting:
        return None
    # Swapped day and month scatter the dates over the year.
    fitting.sort(key=lambda one: _span(texts, one))
    chosen, *others = fitting
    why = f"{texts[0]!r} reads as {chosen}"
    zone = chosen.endswith("UTC")
    return TimeGuess(time_format=chosen, why=why, other_formats=tuple(others), has_zone=zone)


def not_iso(column: pl.Series) -> str:
    """Show the first value of a column that is no ISO time."""
    texts = column.drop_nulls().cast(pl.String)
    return repr(next(iter(texts.filter(_micros(texts, None).is_null())), None))


def _guess_unit(numbers: pl.Series) -> TimeGuess | None:
    units: tuple[tuple[TimeUnit, float], ...] = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
    for unit, factor in units:
        seconds = numbers / factor
        plausible = int(seconds.is_between(FIRST_SECOND, LAST_SECOND).sum())
        if plausible / len(numbers) >= READABLE_SHARE:
            day = datetime.fromtimestamp(float(seconds.drop_nulls()[0]), UTC)
            return TimeGuess(time_unit=unit, why=f"{numbers[0]:.0f} {unit} is {day:%Y-%m-%d}")
    return None


def _micros(texts: pl.Series, time_format: str | None) -> pl.Series:
    """Read texts as features/ will, microseconds since 1970."""
    source = SourceConfig(paths=(Path("sample"),), time_format=time_format)
    frame = pl.DataFrame({"time": texts})
    return frame.select(as_micros(pl.col("time"), pl.String(), source)).to_series()


def _readable(texts: pl.Series, time_format: str | None) -> bool:
    return 1 - _micros(texts, time_format).null_count() / len(texts) >= READABLE_SHARE


def _span(texts: pl.Series, time_format: str) -> float:
    return float(np.ptp(_micros(texts, time_format).drop_nulls().to_numpy()))
