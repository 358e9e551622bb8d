"""What fit_blend fits for a search: by which queries, and what it says it is worth."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl

from pipelines.searching.fit import SearchQueries, fit_text_search
from pipelines.searching.logged import read_logged
from pipelines.searching.meanings import fit_meanings, list_words
from pipelines.searching.texts import item_texts, title_index
from recsys.content.encoder import HashEncoder
from recsys.fitting.blend import ProfileBlend, fusion_profile
from recsys.fitting.counted import popularity_source
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings
from recsys.fitting.spec import Data
from recsys.models.configs import PopularityConfig
from recsys.models.popularity import Popularity
from recsys.models.text_search.logged import fit_logged
from recsys.models.text_search.search import TextSearch, scale_counts
from recsys.models.text_search.words import WordIndex
from serving.items import ItemSearch
from tests.benchmarks.recipes.conftest import small_recipe, small_world

__all__ = ["small_recipe", "small_world"]

SCENTS = ("amber", "basil", "cedar", "lavender", "mandarin")


def catalogue(num_items: int) -> pl.DataFrame:
    """Soaps of five scents; the last item has no text at all."""
    rows = range(1, num_items + 1)
    titles = [f"soap {SCENTS[row % 5]} batch{row}" for row in rows]
    groups = [[f"group{row % 3}"] for row in rows]
    titles[-1], groups[-1] = "", []
    return pl.DataFrame({"item_row": list(rows), "title": titles, "categories": groups})


def test_items_are_read_with_what_queries_may_name():
    items = catalogue(3).with_columns(brand=pl.Series(["Acme", None, ""]), release_year=1999)
    first, second, third = item_texts(items)
    assert first.text == "soap basil batch1 group1 Acme 1999 1990s"
    assert first.attributes == ("group1", "Acme")
    assert second.attributes == ("group2",)
    assert (third.title, third.text) == ("", "1999 1990s")


class Reader:
    """Reads a text by its first letter."""

    name, dim, shard_rows = "reader", 3, 64
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {
            "\u2581Zwei": 9,
            "\u2581one": 2,
            "er": 1,
            "\u2581x1": 3,
            "\u2581three": 4,
        }
    )

    def encode(self, texts, progress=None):
        return np.eye(3, dtype=np.float32)[["ozt".index(text[0].lower()) for text in texts]]


def test_words_and_values_are_read_by_the_encoder_of_the_items(tmp_path):
    assert list_words(Reader(), 9) == {"one": "one", "three": "three", "zwei": "Zwei"}
    assert list(list_words(Reader(), 1)) == ["one"]
    groups = ["one", "two", "one", "two", "alone"]
    items = catalogue(5).with_columns(categories=pl.Series([[name] for name in groups]))
    content = np.vstack([np.zeros(3), np.eye(3)[[0, 2, 0, 2, 1]]]).astype(np.float32)
    wide = np.hstack([content, np.ones((6, 2), np.float32)])
    meanings = fit_meanings(item_texts(items), Reader(), wide, 9, tmp_path)
    assert meanings is not None
    # A value of a single item says no more than its title.
    assert meanings.values == ("one", "two")
    cosines, _ = meanings.near(["zwei"])
    assert cosines.argmax() == 5
    assert meanings.near(["three"])[1].argmax() in (2, 4)
    assert meanings.near(["unheard"]) is None
    for encoder, most in ((None, 9), (HashEncoder(), 9), (Reader(), 0)):
        assert fit_meanings(item_texts(items), encoder, wide, most, tmp_path) is None


def test_popularity_is_scaled_and_orders_titles():
    popularity = scale_counts([0, 1, 9, 3])
    assert popularity[0] == 0
    assert popularity.argmax() == 2
    assert popularity.max() == 1
    index = title_index(item_texts(catalogue(4))[:3], popularity)
    assert index.search("soap", 3) == [2, 3, 1]


def test_a_search_is_fitted_on_queries_of_items_with_texts(small_world):
    inputs = small_world.inputs("given")
    num_items = inputs.sizes.num_item_rows - 1
    texts = item_texts(catalogue(num_items))
    counts = inputs.item_counts("train")
    queries = EvaluationQueries.of(inputs, "validation", RetrievalSettings())
    sequences = inputs.sequences
    popularity = Popularity.fit(
        lambda: iter([(np.asarray(sequences.item_rows), None)]), num_items + 1, PopularityConfig()
    )
    sources = {"popularity": popularity_source(popularity, Data(inputs=inputs), 10_000)}
    blend = ProfileBlend.unlearned(fusion_profile(["popularity"], {"popularity": 1.0}))
    fitted = fit_text_search(texts, queries, sources, blend, counts, 0)
    assert fitted is not None
    assert fitted.num_item_rows == num_items + 1
    judged = SearchQueries.of(queries, {one.item_row: one for one in texts}, 0)
    assert len(judged) > 0
    assert num_items not in judged.targets
    assert np.isfinite(fitted.weights).all()


def test_the_log_of_queries_is_read_and_teaches_weights_that_later_queries_confirm(tmp_path):
    rng, num = np.random.default_rng(0), 400
    documents = [[], *(["soap", SCENTS[row % 5], f"n{row % 7}"] for row in range(1, 101))]
    popularity = scale_counts(np.arange(101.0))
    search = TextSearch(WordIndex.of(documents), (1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0))
    finder = ItemSearch(title_index([], popularity), search, popularity)

    def find(query):
        return finder.find(query).candidates

    lists, clicks = [], []
    for number in range(num):
        query = f"{rng.choice(SCENTS)} n{rng.integers(7)}"
        rows = finder.find(query).item_rows[:20]
        # The popular items of one word come first, and whoever looks for both words goes on.
        wanted = {row for row in rows if set(query.split()) < set(documents[row])}
        chosen = int(rng.choice([*wanted] or rows))
        request = json.dumps({"query": query} if number else {"k": 20})
        for slot, row in enumerate(rows):
            lists.append((f"r{number:03}", number, request, f"item-{row}", slot))
        clicks.append((f"r{number:03}", f"item-{chosen}", "click"))
    columns = ["request_id", "received_time", "request", "item_id", "slot"]
    (tmp_path / "requests").mkdir()
    pl.DataFrame(lists, columns, orient="row").write_parquet(tmp_path / "requests/part.parquet")
    events = pl.DataFrame(clicks, ["request_id", "item_id", "event_type"], orient="row")
    events.write_parquet(tmp_path / "part.parquet")
    ids = {f"item-{row}": row for row in range(1, 101)}
    assert read_logged(tmp_path, ids, ["purchase"]) == []
    logged = read_logged(tmp_path, ids, ["click"])
    assert len(logged) == num - 1
    assert ids[clicks[1][1]] == logged[0].item_rows[logged[0].chosen]
    learned = fit_logged(search, find, logged)
    assert learned.document["kept"]
    assert learned.document["after"] > learned.document["before"]
    assert learned.weights[0] > 2 * learned.weights[3]
    blind = [one._replace(chosen=int(rng.integers(len(one.item_rows)))) for one in logged]
    assert fit_logged(search, find, blind).weights == search.weights.tolist()
    assert fit_logged(search, find, logged[:100]) is None
