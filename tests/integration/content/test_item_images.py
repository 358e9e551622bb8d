"""Images of the items from a folder to vectors, a bundle, and items that come later."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.content import ContentConfig, ImagesConfig
from pipelines.inputs.content_models import check_images, images_name
from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_manifest
from tests.integration.copies import Recsys
from tests.recsys.content.vision_models import write_image, write_vision_model

NUM_ITEMS = 12
COLOURS = ((220, 30, 30), (30, 30, 220), (30, 200, 30))
"""Item i has colour i modulo 3, which no text names."""
EVENTS = "user_id,item_id,event_time\n" + "".join(
    f"u{user},i{(user * 3 + step) % NUM_ITEMS},{1_700_000_000 + 100 * step + user}\n"
    for user in range(30)
    for step in range(6)
)
HEAD = "item_id,title,image\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for at in range(NUM_ITEMS - 2):
        write_image(folder / f"photos/{at}.png", COLOURS[at % 3], at)
    (folder / "photos/10.png").write_text("no image")
    (folder / "events.csv").write_text(EVENTS)
    lines = [f"i{at},thing {at},{at}.png\n" for at in range(NUM_ITEMS - 1)]
    (folder / "items.csv").write_text(HEAD + "".join(lines) + "i11,thing 11,\n")
    write_vision_model(folder / "vision")
    (folder / "shop.toml").write_text(
        f'preset = "shop"\nauto.enabled = false\nworkspace = "{folder}/run"\n'
        'tracking.enabled = false\n[data]\nevents = "events.csv"\nitems = "items.csv"\n'
        '[content]\nencoder = "hash"\n[content.images]\nfolder = "photos"\nencoder = "vision"\n'
        "[two_tower]\nembedding_dim = 8\nhidden_dim = 8\n[two_tower_training]\nmax_epochs = 1.0\n"
        "[release]\nmin_gain_over_popularity = -1\n"
    )
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path, recsys: Recsys) -> Path:
    result = recsys("run", "-c", folder / "shop.toml", "-q")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "note: 1 of 11 images are missing, the first:" in said
    assert "10.png is no readable image" in said.replace("photos/ ", "photos/")
    return folder / "run"


def test_items_of_one_colour_are_neighbours_by_their_images(finished: Path) -> None:
    made = json.loads((finished / "embed_items/content.json").read_text())
    (column,) = made["columns"]
    assert (column["name"], column["kind"], column["width"]) == ("image", "vector", 32)
    assert made["images"].startswith("vision-images-")
    items = pl.read_parquet(finished / "build_features/items.parquet")
    order = [f"i{at}" for at in range(NUM_ITEMS)]
    row_of = dict(zip(items["item_id"], items["item_row"], strict=True))
    content = np.load(finished / "embed_items/content.npy")
    images = content[[row_of[name] for name in order], -33:]
    assert np.flatnonzero(~images.any(1)).tolist() == [10, 11]
    likeness = images[:10, :-1] @ images[:10, :-1].T
    np.fill_diagonal(likeness, -np.inf)
    assert (likeness.argmax(1) % 3).tolist() == [at % 3 for at in range(10)]
    source = read_manifest((finished / "bundles/current").resolve())[0].content
    assert source is not None
    assert source.images == made["images"]


def test_new_items_have_images_too(finished: Path, folder: Path, recsys: Recsys) -> None:
    path = folder / "new.csv"
    path.write_text(HEAD + "n1,thing 3,3.png\nn2,thing 2,gone.png\n")
    result = recsys("release", "append", path, "-b", finished)
    assert result.exit_code == 0, result.output
    assert "1 of 2 images are missing" in " ".join(result.output.split())
    bundle = load_bundle((finished / "bundles/current").resolve())
    content = bundle.items.content
    old, new, other = (bundle.catalogue.row_of(name) for name in ("i3", "n1", "n2"))
    assert content[new].tolist() == content[old].tolist()
    assert not content[other, -33:].any()

    path.write_text(HEAD + "n3,thing 3,../items.csv\n")
    result = recsys("release", "append", path, "-b", finished)
    assert result.exit_code != 0
    assert "image '../items.csv' of item 1 leads out of" in " ".join(result.output.split())


def test_images_of_another_model_are_not_put_beside(folder: Path) -> None:
    images = ImagesConfig(folder=str(folder / "photos"), encoder=str(folder / "vision"))
    config = ContentConfig(images=images)
    check_images(config, images_name(config), "bundle-1")
    with pytest.raises(ValueError, match=r"images of bundle-1 were encoded by other-1, but"):
        check_images(config, "other-1", "bundle-1")
    with pytest.raises(ValueError, match=r"encoder is now not set"):
        check_images(ContentConfig(), "other-1", "bundle-1")
