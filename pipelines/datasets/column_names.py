"""Names of our columns in other people's files, most telling name first."""

from __future__ import annotations

import re

EVENT_NAMES: dict[str, tuple[str, ...]] = {
    "user_id": (
        "user_id", "user", "uid", "customer_id", "customer", "client_id", "client", "visitor_id",
        "visitor", "member_id", "account_id", "buyer_id", "shopper_id", "person_id", "reviewer_id",
        "reviewer", "kunde", "kunden_nr", "kundennummer", "kunden_id", "usuario", "utilisateur",
        "device_id", "cookie_id", "session_id",
    ),
    "item_id": (
        "item_id", "item", "product_id", "product", "sku", "article_id", "article", "asin",
        "parent_asin", "movie_id", "movie", "book_id", "isbn", "track_id", "song_id", "video_id",
        "listing_id", "content_id", "news_id", "stock_code", "goods_id", "offer_id", "game_id",
        "recipe_id", "artikel", "artikel_nr", "artikelnummer", "produkt", "producto", "produit",
    ),
    "event_time": (
        "event_time", "timestamp", "time", "datetime", "date", "created_at", "ts", "unix_time",
        "unix_timestamp", "occurred_at", "order_date", "invoice_date", "purchase_date",
        "review_time", "unix_review_time", "datum", "zeit", "zeitstempel", "zeitpunkt", "fecha",
        "viewed_at", "when",
    ),
    "sequence_index": ("sequence_index", "position", "sequence", "order_index", "step"),
    "event_type": (
        "event_type", "event", "action", "behavior", "behaviour", "behavior_type", "interaction",
        "activity", "verb", "aktion", "type",
    ),
    "value": ("value", "rating", "score", "stars", "overall", "bewertung", "amount", "betrag"),
    "domain": ("domain", "department_id", "storefront", "vertical"),
    "session_id": ("session_id", "session", "visit_id"),
    "request_id": ("request_id", "impression_id", "slate_id"),
    "slot": ("slot",),
    "propensity": ("propensity", "propensity_score"),
}  # fmt: skip
ITEM_NAMES: dict[str, tuple[str, ...]] = {
    "title": (
        "title", "name", "product_name", "item_name", "movie_title", "titel", "bezeichnung",
        "produktname", "nombre", "titre", "headline",
    ),
    "description": ("description", "desc", "beschreibung", "summary", "abstract", "text"),
    "categories": (
        "categories", "category", "genres", "genre", "class", "tags", "kategorie", "kategorien",
        "department", "product_type",
    ),
    "brand": ("brand", "manufacturer", "marke", "hersteller", "maker"),
    "price": ("price", "preis", "unit_price", "list_price", "precio", "prix", "cost"),
    "available_from": ("available_from", "release_date", "released_at", "launch_date"),
    "domain": ("domain",),
}  # fmt: skip
FILE_WORDS = {
    "events": (
        "event", "interaction", "rating", "click", "order", "transaction", "log", "view",
        "purchase", "review", "impression", "inter", "bestellung",
    ),
    "items": (
        "item", "product", "movie", "article", "catalog", "book", "sku", "artikel", "produkt",
    ),
    "users": ("user", "customer", "member", "people", "client", "kunde"),
}  # fmt: skip


def plain_name(name: str) -> str:
    """Write a column name as lower_snake_case, without a trailing ``:type``."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.split(":")[0].strip())
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def name_score(column: str, names: tuple[str, ...]) -> float:
    """Score how well a column's name fits: 1 to 2 for a known name, less for a part, 0 for none."""
    plain = plain_name(column)
    squeezed = {name.replace("_", ""): place for place, name in enumerate(names)}
    if (place := squeezed.get(plain.replace("_", ""))) is not None:
        return 2 - place / len(names)
    words = plain.split("_")
    for place, name in enumerate(names):
        if len(name) > 2 and name in (words[0], words[-1], "_".join(words[-2:])):
            return 0.9 - 0.4 * place / len(names)
    return 0.0


def kind_of_file(stem: str) -> str | None:
    """Guess events, items or users from a file's name."""
    plain = plain_name(stem)
    for kind, words in FILE_WORDS.items():
        if any(word in plain for word in words):
            return kind
    return None
