"""Words and pairs of a catalogue in a few columns."""

from pathlib import Path

import numpy as np
import pytest
import torch

import recsys.content.latent_words as latent_words
from recsys.content.latent_words import LatentWords, count_terms

TEXTS = ["Prada candy perfume", "candy perfume by Prada", "led bicycle lamp", "", "bicycle lamp"]


def many_texts(number: int) -> list[str]:
    rng = np.random.default_rng(0)
    words = np.array([f"w{at}" for at in range(40)])
    return [" ".join(words[rng.integers(0, 40, 6)]) for _ in range(number)]


def slow_cosines(texts: list[str], width: int) -> np.ndarray:
    """Decompose the dense matrix of texts by terms."""
    counted = [count_terms(text) for text in texts]
    texts_with = {term: sum(term in one for one in counted) for one in counted for term in one}
    terms = sorted(term for term, many in texts_with.items() if 2 <= many < len(texts))
    matrix = np.zeros((len(texts), len(terms)))
    for row, one in enumerate(counted):
        for column, term in enumerate(terms):
            if term in one:
                rarity = np.log(len(texts) / texts_with[term])
                matrix[row, column] = (1 + np.log(one[term])) * rarity
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    places = left[:, :width] * values[:width]
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    cosines: np.ndarray = places @ places.T
    return cosines


def test_vectors_are_those_of_a_whole_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent_words, "WIDTH", 12)
    texts = many_texts(90)
    vectors = LatentWords.fit(texts).encode(texts)
    assert vectors.shape == (90, 12)
    assert np.allclose(vectors @ vectors.T, slow_cosines(texts, 12), atol=0.03)


def test_texts_of_the_same_words_are_alike_and_others_say_nothing() -> None:
    words = LatentWords.fit(TEXTS)
    vectors = words.encode([*TEXTS, "unheard of", "BICYCLE, lamp!", "lamp 東京 unheard"])
    assert vectors.shape == (8, latent_words.WIDTH)
    lengths = np.linalg.norm(vectors, axis=1)
    assert lengths == pytest.approx([1, 1, 1, 0, 1, 0, 1, 1], abs=1e-3)
    assert vectors[0] @ vectors[1] > 0.9
    assert abs(vectors[0] @ vectors[2]) < 1e-3
    assert vectors[6].tolist() == vectors[4].tolist()
    for texts in ([], [""], ["one text"], ["same words", "same words"]):
        assert not LatentWords.fit(texts).encode(["one text", *texts]).any()


def test_a_saved_fit_encodes_one_text_as_it_encoded_all(tmp_path: Path) -> None:
    texts = [*many_texts(70), "naïve café naïve", "naïve café au lait"]
    words = LatentWords.fit(texts)
    vectors = words.encode(texts)
    words.save(tmp_path / "words.safetensors")
    loaded = LatentWords.load(tmp_path / "words.safetensors")
    assert loaded.name == words.name
    assert all(
        (loaded.encode([text])[0] == one).all() for text, one in zip(texts, vectors, strict=True)
    )
    assert LatentWords.fit(texts[:-1]).name != words.name
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert LatentWords.fit(texts).name == words.name
    finally:
        torch.set_num_threads(threads)


def test_a_large_catalogue_is_fitted_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent_words, "MAX_FITTED", 30)
    monkeypatch.setattr(latent_words, "BLOCK", 7)
    monkeypatch.setattr(latent_words, "MAX_TERMS", 25)
    texts = many_texts(90)
    words = LatentWords.fit(texts)
    assert len(words.terms) == 25
    assert words.encode(texts).any(1).all()
