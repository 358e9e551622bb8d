"""The source that each stage depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.engine import code
from pipelines.engine.code import INSTALLED, Computation, SourceTree
from pipelines.engine.stage import Stage
from pipelines.stages.list import STAGES


def test_every_way_to_import_is_seen_and_imports_for_annotations_are_not():
    text = """
import recsys.data.batch as batch, features
from typing import TYPE_CHECKING
from recsys.models.ranker import (
    model,  # why, (even so)
    network as net,
)
from recsys.data.dataset import Rows, Sequences

if TYPE_CHECKING:
    from serving.server.serve import (
        serve,
    )

    import mlflow
from polars import col

def late(rows: Rows, app: serve) -> list[Sequences]:
    if True:
        from serving import bundle
    return Sequences()
"""
    assert set(Computation(text).imports) == {
        "recsys.data.batch",
        "features",
        "recsys.models.ranker.model",
        "recsys.models.ranker.network",
        "recsys.data.dataset.Sequences",
        "polars.col",
        "serving.bundle",
    }


BEFORE = '''
"""A module."""
from dataclasses import dataclass
from typing import ClassVar
import torch
from a import b, c

# The size.
SIZE = 3

@dataclass
class Config:
    """Settings."""

    width: int = 4
    """Of a layer."""
    depth: ClassVar[int] = 2
    name: str

def scaled(values, *, by=None):
    total = values + SIZE
    if by is None:
        pass
    return total * b(c, torch.ones(2))
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""What a module is."""'),
        ('"""A module."""\n', ""),
        ('    """Of a layer."""\n', ""),
        ("# The size.", "# How large it is, in items."),
        ("SIZE = 3", "SIZE: int = (\n    0x3\n)"),
        ("width: int", "width: float | None"),
        ("def scaled(values, *, by=None):", "def scaled(values: Tensor, *, by: X = None) -> Y:"),
        ("    total =", "    total: Tensor\n    total ="),
        ("        pass\n", '        """Nothing."""\n'),
        ("from a import b, c", "from a import (\n    c,\n    b,\n)"),
        ("import torch\nfrom a import b, c", "from a import b\nimport torch\nfrom a import c"),
        (
            "import torch\n",
            "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport torch\n"
            "if TYPE_CHECKING:\n    from d import e\n",
        ),
    ],
)
def test_wording_annotations_and_layout_are_not_computed(old, new):
    assert old in BEFORE
    assert Computation(BEFORE.replace(old, new)).digest == Computation(BEFORE).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 3", "SIZE = 4"),
        ("SIZE = 3", "SIZE = 3.0"),
        ("SIZE = 3", "SIZE = True"),
        ("by=None", "by"),
        ("by=None", "by=0"),
        ("values, *, by", "values, by"),
        ("values + SIZE", "values - SIZE"),
        ("by is None", "by is not None"),
        ("width: int = 4", "width: int = 5"),
        ("width: int = 4", "width = 4"),
        ("ClassVar[int]", "int"),
        ("    name: str\n", ""),
        ("@dataclass\n", ""),
        ("b(c, torch.ones(2))", "c(b, torch.ones(2))"),
        ("from a import b, c", "from a import b\nfrom d import c"),
        ("return total", "total"),
        ("        pass", "        total = by"),
    ],
)
def test_every_change_of_what_is_computed_counts(old, new):
    assert old in BEFORE
    assert Computation(BEFORE.replace(old, new, 1)).digest != Computation(BEFORE).digest


SOURCES = {
    "pipelines/stages/train.py": "import features\nfrom recsys.loop import run\nimport torch\n",
    "pipelines/stages/report.py": (
        "from typing import TYPE_CHECKING\nfrom pipelines.config.run import Run\n"
        "if TYPE_CHECKING:\n    from recsys.loop import run\n"
    ),
    "pipelines/config/run.py": "from serving.surfaces import HOME\n",
    "recsys/__init__.py": "",
    "recsys/loop.py": "def run():\n    from recsys.deep import cuda\n",
    "recsys/deep/cuda.py": "KERNELS = 3\n",
    "recsys/deep/cuda/kernels/sum.cu": "// sum",
    "recsys/deep/README.md": "Kernels.",
    "features/__init__.py": "",
    "serving/surfaces.py": "HOME = 1\n",
    "pipelines/unused.py": "import torch\n",
}
TRAIN, REPORT = "pipelines.stages.train", "pipelines.stages.report"
TRAINED_BY = {
    *("pipelines/stages/train.py", "recsys/__init__.py", "recsys/loop.py", "features/__init__.py"),
    *("recsys/deep/cuda.py", "recsys/deep/cuda/kernels/sum.cu"),
}
REPORTED_BY = {"pipelines/stages/report.py", "pipelines/config/run.py"}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A small tree of the four packages."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_change_of_a_file_makes_exactly_the_stages_that_read_it_again(copied):
    """Imports inside functions and data next to code count; wording and annotations do not."""

    def digests() -> tuple[str, str]:
        tree = SourceTree(copied, copied / "code.json")
        return tree.digest(TRAIN), tree.digest(REPORT)

    before = digests()
    for path, text in SOURCES.items():
        (copied / path).write_text(f"{text}\nEDITED = 1\n")
        changed = tuple(old != new for old, new in zip(before, digests(), strict=True))
        assert changed == (path in TRAINED_BY, path in REPORTED_BY), path
        (copied / path).write_text(text)
    assert SourceTree(copied).libraries(TRAIN) == ["torch"]
    assert SourceTree(copied).libraries(REPORT) == []


def test_all_that_makes_a_stage_is_in_its_code():
    for stage in STAGES:
        module = stage.function.__module__
        assert module == f"pipelines.stages.{stage.name}"
        for part in (stage.raw_files, stage.outputs_exist):
            if part not in (Stage.raw_files, Stage.outputs_exist):
                assert part.__module__ in INSTALLED.closure(module)


def test_code_that_was_read_before_is_not_parsed_again(copied, monkeypatch):
    digest = SourceTree(copied, copied / "code.json").digest(TRAIN)

    def parsed(text: str) -> Computation:
        raise AssertionError("nothing has changed since it was parsed")

    monkeypatch.setattr(code, "Computation", parsed)
    assert SourceTree(copied, copied / "code.json").digest(TRAIN) == digest


def test_damaged_or_older_files_of_digests_are_not_read(copied):
    kept = copied / "code.json"
    expected = SourceTree(copied, kept).digest(TRAIN)
    document = json.loads(kept.read_text())
    for path in document["files"]:
        document["files"][path][1] = "0" * 64
    kept.write_text(json.dumps({**document, "reader": "another"}))
    assert SourceTree(copied, kept).digest(TRAIN) == expected
    kept.write_text("[1")
    assert SourceTree(copied, kept).digest(TRAIN) == expected
