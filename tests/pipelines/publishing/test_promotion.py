import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines.engine.decisions import history, read_challenger
from pipelines.engine.errors import RefusedError
from pipelines.publishing.promotion import (
    champions,
    keep_refused,
    note_champion,
    note_release,
    promote,
    refuse,
    rollback,
)
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.manifest import publish, read_manifest
from tests.serving.synthetic_bundle import write_synthetic_bundle
from tests.serving.writable import writable


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Three bundles, none of them published."""
    folder = tmp_path / "bundles"
    folder.mkdir()
    for version in ("v1", "v2", "v3"):
        write_synthetic_bundle(folder, version)
    return folder


def served(bundles: Path) -> str:
    return read_manifest((bundles / "current").resolve())[0].version


def test_rollbacks_walk_back_and_a_promotion_after_one_starts_from_there(bundles):
    for version in ("v1", "v2", "v3"):
        promote(bundles, version)
    assert rollback(bundles).version == "v2"
    assert rollback(bundles).version == "v1"
    assert served(bundles) == "v1"
    promote(bundles, "v3")
    assert champions(bundles) == ["v1", "v3"]
    assert rollback(bundles).version == "v1"
    assert [change.outcome for change in history(bundles)] == [
        *("promoted", "promoted", "promoted", "rolled back", "rolled back"),
        *("promoted", "rolled back"),
    ]


def test_there_is_nothing_before_the_first_champion(bundles):
    with pytest.raises(ValueError, match="no champion yet"):
        rollback(bundles)
    promote(bundles, "v1")
    promote(bundles, "v1")
    with pytest.raises(ValueError, match="v1 is the first champion"):
        rollback(bundles)
    assert served(bundles) == "v1"


def test_the_challenger_is_promoted_by_default_and_is_one_no_more(bundles):
    with pytest.raises(ValueError, match=r"no challenger .* v1, v2, v3"):
        promote(bundles, None)
    # The first is champion whatever is set; made once more it stays what it is.
    assert note_release(bundles, "v1", promoted=False) == "champion"
    assert note_release(bundles, "v3", promoted=False) == "challenger"
    assert note_release(bundles, "v2", promoted=False) == "challenger"
    assert note_release(bundles, "v1", promoted=False) == "champion"
    assert (served(bundles), read_challenger(bundles)) == ("v1", "v2")

    promote(bundles, None)

    assert (served(bundles), read_challenger(bundles)) == ("v2", None)
    with pytest.raises(ValueError, match=r"no challenger .* v1, v2, v3"):
        promote(bundles, None)
    assert rollback(bundles).version == "v1"


@pytest.fixture
def with_delta(bundles: Path) -> Path:
    """``v2`` is champion, and a delta of it is published."""
    for version in ("v1", "v2"):
        promote(bundles, version)
    item = NewItem(item_id="fresh", display_text="Fresh")
    content, vectors = np.zeros((1, 4), np.float32), np.ones((1, 8), np.float32)
    write_delta(bundles, "v2", [item], content=content, item_vectors=vectors)
    return bundles


def test_rollback_takes_back_the_appended_items_alone(with_delta):
    note_champion(with_delta, "v2+1", "append")
    # Released once more, the bundle below the delta leaves it served.
    assert note_release(with_delta, "v2", promoted=True) == "champion"
    assert served(with_delta) == "v2+1"
    assert champions(with_delta) == ["v1", "v2", "v2+1"]
    assert rollback(with_delta).version == "v2"
    assert rollback(with_delta).version == "v1"
    promote(with_delta, "v2+1")
    assert served(with_delta) == "v2+1"


def test_what_moved_current_without_a_line_in_the_history_is_found(with_delta):
    """By hand, or a kill between the link and the line."""
    publish(with_delta, "v2+1")
    assert rollback(with_delta).version == "v2"
    publish(with_delta, "v2+1")
    promote(with_delta, "v3")
    assert champions(with_delta) == ["v1", "v2", "v2+1", "v3"]
    assert rollback(with_delta).version == "v2+1"
    # A rollback that was killed before its line.
    publish(with_delta, "v2")
    assert rollback(with_delta).version == "v1"
    assert champions(with_delta) == ["v1"]


def test_what_is_damaged_does_not_keep_a_release_from_being_served(with_delta):
    note_champion(with_delta, "v2+1", "append")
    shutil.rmtree(with_delta / "bundle-v2")
    assert note_release(with_delta, "v3", promoted=False) == "champion"
    assert served(with_delta) == "v3"


def test_a_refused_bundle_is_served_by_force_alone_and_a_rollback_needs_its_bundle(bundles):
    keep_refused(bundles, bundles / "bundle-v3")
    failed = {"name": "size", "value": 2.0, "bound": 1.0, "passed": False, "reason": "large"}
    about = {"champion": None, "challenger_digest": None, "words": ["Refused.", "size: large"]}
    with pytest.raises(RefusedError, match=r"nothing is served\.\n  size: large\n"):
        refuse(bundles, "v3", **about, verdicts=[failed])
    with pytest.raises(RefusedError, match="v3 is not served: it was refused: size"):
        promote(bundles, "v3")
    promote(bundles, "v1")
    assert promote(bundles, "v3", force=True).forced
    assert (served(bundles), (bundles / "bundle-v3").is_dir()) == ("v3", True)
    shutil.rmtree(writable(bundles / "bundle-v1"))
    with pytest.raises(ValueError, match=r"v1, is no longer in .* promote one that is: v2, v3"):
        rollback(bundles)
