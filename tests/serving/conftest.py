"""A small released bundle, and a way to make an altered one look as if it had been released."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.data.durable import digest_of_file
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import MANIFEST, FileEntry, publish, vocabulary_digests
from tests.serving.server.running import RunningServer, running
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, write_synthetic_bundle
from tests.serving.writable import writable


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles folder with ``v1`` published; shared, so not to be changed."""
    bundles_dir = tmp_path_factory.mktemp("bundles")
    write_synthetic_bundle(bundles_dir, "v1")
    publish(bundles_dir, "v1")
    return bundles_dir


@pytest.fixture(scope="session")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with every kind of model; shared, so not to be changed."""
    size = SyntheticSize(history_models=True, ranker=True)
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("ranked"), "v1", size))


@pytest.fixture(scope="session")
def shared(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of two workers that anyone may administer, shared by tests of users of their own."""
    folder = tmp_path_factory.mktemp("shared")
    store = f"sqlite:{folder / 'online'}"
    options = {"store": store, "allow_admin": "true", "expose_users": "true"}
    with running(released, folder / "log", **options) as server:
        yield server


@pytest.fixture
def bundles_dir(released: Path, tmp_path: Path) -> Path:
    """A copy of ``released`` that a test may damage."""
    return writable(Path(shutil.copytree(released, tmp_path / "bundles", symlinks=True)))


@pytest.fixture(scope="session")
def reseal() -> Callable[..., None]:
    """Make a manifest fit the files that lie there, as somebody would who forges a bundle."""

    def rewrite(directory: Path, **changes: Any) -> None:
        writable(directory)
        document = json.loads((directory / MANIFEST).read_text())
        paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        files = {
            path.relative_to(directory).as_posix(): FileEntry(
                sha256=digest_of_file(path), size=path.stat().st_size
            )
            for path in paths
            if path.name != MANIFEST
        }
        document["files"] = {name: entry.model_dump() for name, entry in files.items()}
        document["vocabularies"] = vocabulary_digests(files)
        document |= changes
        (directory / MANIFEST).write_text(json.dumps(document))

    return rewrite


@pytest.fixture
def parts(tmp_path_factory):
    """What a small bundle is made of."""
    return synthetic_parts(tmp_path_factory.mktemp("parts"), SyntheticSize())
