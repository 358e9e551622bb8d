"""Images as vectors: like images are near, what is no image is a row of zeros."""

from pathlib import Path

import numpy as np
import pytest

from recsys.content.image_encoder import ImageEncoder, files_in, missing_as_none
from tests.recsys.content.vision_models import write_image, write_vision_model


@pytest.fixture(scope="module", params=["vit", "clip"])
def encoder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ImageEncoder:
    folder = tmp_path_factory.mktemp(request.param)
    return ImageEncoder(write_vision_model(folder / "tiny", request.param), device="cpu")


def test_images_of_one_colour_are_nearest(encoder: ImageEncoder, tmp_path: Path) -> None:
    red = [write_image(tmp_path / f"r{seed}.png", (220, 30, 30), seed) for seed in range(2)]
    blue = write_image(tmp_path / "b.jpg", (30, 30, 220), 2)
    vectors = encoder.encode(encoder.digests([*red, blue]))
    assert vectors.shape == (3, encoder.dim)
    first, second, other = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert first @ second > first @ other


def test_what_is_no_image_is_missing_and_moves_no_other(
    encoder: ImageEncoder, tmp_path: Path
) -> None:
    good = write_image(tmp_path / "good.png", (10, 200, 10))
    cut = tmp_path / "cut.png"
    cut.write_bytes(good.read_bytes()[:200])
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    (tmp_path / "empty.png").touch()
    files = [cut, good, text, tmp_path / "empty.png"]
    vectors = encoder.encode(encoder.digests(files))
    alone = encoder.encode(encoder.digests([good]))
    assert [one is None for one in missing_as_none(vectors)] == [True, False, True, True]
    np.testing.assert_allclose(vectors[1], alone[0], rtol=1e-5, atol=1e-6)


def test_files_are_sought_below_the_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    write_image(folder / "shop/a.png", (1, 2, 3))
    write_image(tmp_path / "secret.png", (1, 2, 3))
    names = ["shop/a.png", None, "", "b.png", "https://example.org/a.png", 7]
    assert files_in(folder, names) == {0: folder.resolve() / "shop/a.png"}
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        with pytest.raises(ValueError, match=r"item 1 leads out of .*; name files below it"):
            files_in(folder, [name])
