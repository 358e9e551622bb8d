"""Columns of the items from a CSV to vectors, models, a bundle, and items that come later."""

import json
from pathlib import Path

import numpy as np
import pytest

from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_manifest
from tests.integration.copies import Recsys

COLUMNS = '["price", "since", "brand", "tags", "photo"]'
EVENTS = "user_id,item_id,event_time\n" + "".join(
    f"u{user},i{(user * 3 + step) % 12},{1_700_000_000 + 100 * step + user}\n"
    for user in range(30)
    for step in range(6)
)
HEAD = "sku,label,price,since,brand,tags,photo\n"
ITEMS = HEAD + "".join(
    f"i{at},thing {at},{at * 1.5 if at else ''},2026-01-{at + 1:02d},{'ab'[at % 2]},"
    f'all|{"xy"[at % 2]},"[{at}.0, 1.5]"\n'
    for at in range(12)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    (folder / "events.csv").write_text(EVENTS)
    (folder / "items.csv").write_text(ITEMS)
    (folder / "shop.toml").write_text(
        f'preset = "shop"\nauto.enabled = false\nworkspace = "{folder}/run"\n'
        'tracking.enabled = false\n[data]\nevents = "events.csv"\nitems = "items.csv"\n'
        'item_columns = { item_id = "sku", title = "label" }\n'
        f'[content]\nencoder = "minilm+words"\ncolumns = {COLUMNS}\n'
        "[two_tower]\nembedding_dim = 8\nhidden_dim = 8\n[two_tower_training]\nmax_epochs = 1.0\n"
        "[release]\nmin_gain_over_popularity = -1\n"
    )
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path, recsys: Recsys) -> Path:
    result = recsys("run", folder / "shop.toml", "-q")
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_columns_stand_behind_the_text_and_reach_the_two_tower(finished: Path) -> None:
    made = json.loads((finished / "embed_items/content.json").read_text())
    kinds = {one["name"]: one["kind"] for one in made["columns"]}
    assert kinds == {
        "price": "number", "since": "date", "brand": "category", "tags": "list", "photo": "vector",
    }  # fmt: skip
    content = np.load(finished / "embed_items/content.npy")
    without = np.flatnonzero(content[1:, -(content.shape[1] - made["dim"]) :].any(1))
    assert len(content) == 13
    assert len(without) == 12
    bundle = load_bundle(finished / "bundles/current")
    assert bundle.retriever is not None
    assert bundle.retriever.model.inputs.content_dim == content.shape[1] == made["dim"]
    source = read_manifest((finished / "bundles/current").resolve())[0].content
    assert source is not None
    assert source.columns == made["columns"]


def test_new_items_are_encoded_as_the_old_ones_were(
    finished: Path, folder: Path, recsys: Recsys
) -> None:
    path = folder / "new.csv"
    # As i3, under another id; and one of which only the brand is known, a new one.
    path.write_text(HEAD + 'n1,thing 3,4.5,2026-01-04,b,all|y,"[3.0, 1.5]"\nn2,,,,new,,\n')
    result = recsys("release", "append", finished, path)
    assert result.exit_code == 0, result.output
    bundle = load_bundle((finished / "bundles/current").resolve())
    content = bundle.items.content
    old, new, other = (bundle.catalogue.row_of(name) for name in ("i3", "n1", "n2"))
    assert content[new].tolist() == content[old].tolist()
    assert bundle.catalogue.title_of(new) == "thing 3"
    assert content[other].any()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("n9,t,cheap,,,,\n", "column price is a number, but value 1 is 'cheap'"),
        ("n9,t,,soon,,,\n", "column since is a date, but value 1 is 'soon'"),
        ('n9,t,,,,,"[1.0, 2.0, 3.0]"\n', "column photo: value 1 has 3 numbers, the others have 2"),
        ('n9,t,,,,,"[1.0, NaN]"\n', "column photo: value 1 holds NaN or infinity"),
    ],
)
def test_a_column_that_changes_its_type_is_refused(
    row: str, message: str, finished: Path, folder: Path, recsys: Recsys
) -> None:
    path = folder / "bad.csv"
    path.write_text(HEAD + row)
    served = (finished / "bundles/current").resolve()
    result = recsys("release", "append", finished, path)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert (finished / "bundles/current").resolve() == served
