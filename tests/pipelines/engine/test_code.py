"""The source that each stage depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.engine.code import INSTALLED, Computation, SourceTree
from pipelines.engine.stage import always, no_raw_files
from pipelines.stages.list import STAGES


def test_every_way_to_import_is_seen_and_imports_for_annotations_are_not() -> None:
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
def test_wording_annotations_and_layout_are_not_computed(old: str, new: str) -> None:
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
def test_every_change_of_what_is_computed_counts(old: str, new: str) -> None:
    assert old in BEFORE
    assert Computation(BEFORE.replace(old, new, 1)).digest != Computation(BEFORE).digest


FILES = {
    "pipelines/stages/make.py": "from recsys import models\nfrom pipelines.config.run import Run\n",
    "pipelines/config/run.py": "from recsys.other import Settings\n",
    "recsys/__init__.py": "",
    "recsys/models/__init__.py": "def late():\n    from recsys.models.net import Net\n",
    "recsys/models/net.py": "import torch\n",
    "recsys/models/kernels/fast.cu": "",
    "recsys/models/README.md": "",
    "recsys/other.py": "import faiss\n",
}
UNREAD = {"recsys/models/README.md", "recsys/other.py"}
"""What settings import makes no stage run again."""


def test_change_of_a_file_counts_if_a_module_that_is_imported_reads_it(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    before = SourceTree(tmp_path)
    assert before.libraries("pipelines.stages.make") == ["torch"]
    assert before.digests("pipelines.stages.make").keys() == FILES.keys() - UNREAD
    for path, text in FILES.items():
        (tmp_path / path).write_text(f"{text}EDITED = 1\n")
        after = SourceTree(tmp_path).digest("pipelines.stages.make")
        (tmp_path / path).write_text(text)
        assert (after == before.digest("pipelines.stages.make")) == (path in UNREAD), path


def test_all_that_makes_a_stage_is_in_its_code() -> None:
    for stage in STAGES:
        module = stage.function.__module__
        assert module == f"pipelines.stages.{stage.name}"
        for part in (stage.raw_files, stage.outputs_exist):
            if part not in (no_raw_files, always):
                assert part.__module__ in INSTALLED.closure(module)
