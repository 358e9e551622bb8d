"""The source that each stage depends on, held against the syntax trees."""

from __future__ import annotations

import ast
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from pipelines.engine import code
from pipelines.engine.code import INSTALLED, PACKAGES, Computation, SourceTree
from pipelines.engine.stage import always, no_raw_files
from pipelines.stages.list import STAGES

MODULE_OF = {stage.name: stage.function.__module__ for stage in STAGES}


class WithoutAnnotations(ast.NodeTransformer):
    """Takes annotations out of a tree and collects their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return None
        for field in ("annotation", "returns"):
            if annotation := getattr(node, field, None):
                self.names |= {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}
                setattr(node, field, None)
        return self.generic_visit(node)


def names_by_syntax_tree(text: str) -> set[str]:
    tree, without = ast.parse(text), WithoutAnnotations()
    without.visit(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            place = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.asname or (alias.name if place else alias.name.partition(".")[0])
                if bound in used or bound not in without.names:
                    names.add(place + alias.name)
    return names


@cache
def names_in(path: Path) -> set[str]:
    return names_by_syntax_tree(path.read_text(encoding="utf-8"))


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


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(INSTALLED.root / package, root / package)
    return root


class Edited(SourceTree):
    """Reads a file again once it was edited, and keeps what it read of the others."""

    def digests_after_edit(self, path: str) -> dict[str, str]:
        file, is_code = self.root / path, path.endswith(".py")
        before = file.read_text(encoding="utf-8")
        file.write_text(before + ("\nEDITED = 1\n" if is_code else " "), encoding="utf-8")
        kept = self._codes.pop(path, None)
        digests = {name: self.digest(module) for name, module in MODULE_OF.items()}
        file.write_text(before, encoding="utf-8")
        self._codes.pop(path, None)
        if kept:
            self._codes[path] = kept
        return digests


def closure_by_syntax_tree(root: Path, module: str) -> set[str]:
    """Find the files of a closure, as `SourceTree` should."""
    files: set[str] = set()
    todo = [module]
    while todo:
        parts = todo.pop().split(".")
        for length in range(1, len(parts) + 1):
            place = "/".join(parts[:length])
            for path in (f"{place}.py", f"{place}/__init__.py"):
                if (root / path).exists() and path not in files:
                    files.add(path)
                    if not path.startswith("pipelines/config/"):
                        names = names_in(root / path)
                        todo += [name for name in names if name.partition(".")[0] in PACKAGES]
    return files


@pytest.fixture(scope="module")
def tree(copied: Path) -> Edited:
    return Edited(copied, copied / "code.json")


def test_change_of_a_module_makes_exactly_the_stages_that_import_it_again(
    copied: Path, tree: Edited
) -> None:
    before = {name: tree.digest(module) for name, module in MODULE_OF.items()}
    files = {name: closure_by_syntax_tree(copied, module) for name, module in MODULE_OF.items()}
    assert min(map(len, files.values())) > 10
    for path in sorted(set().union(*files.values()))[::5]:
        after = tree.digests_after_edit(path)
        changed = {name for name in before if after[name] != before[name]}
        assert changed == {name for name in before if path in files[name]}, path


def test_readmes_and_modules_that_nothing_imports_make_nothing_again(
    copied: Path, tree: Edited
) -> None:
    before = {name: tree.digest(module) for name, module in MODULE_OF.items()}
    for path in ("recsys/kernels/embedding_bag/README.md", "pipelines/cli/main.py"):
        (copied / path).write_text("print()\n")
    (copied / "recsys/unused.py").write_text("import torch\n")
    again = SourceTree(copied, copied / "code.json")
    assert before == {name: again.digest(module) for name, module in MODULE_OF.items()}


def test_all_that_makes_a_stage_is_in_its_code() -> None:
    for stage in STAGES:
        module = stage.function.__module__
        assert module == f"pipelines.stages.{stage.name}"
        for part in (stage.raw_files, stage.outputs_exist):
            if part not in (no_raw_files, always):
                assert part.__module__ in INSTALLED.closure(module)


def test_code_that_was_read_before_is_not_parsed_again(
    copied: Path, tree: Edited, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {module: tree.digest(module) for module in MODULE_OF.values()}

    def parsed(text: str) -> Computation:
        raise AssertionError("nothing has changed since it was parsed")

    monkeypatch.setattr(code, "Computation", parsed)
    again = SourceTree(copied, copied / "code.json")
    for module, digest in digests.items():
        assert again.digest(module) == digest
        assert again.libraries(module) == tree.libraries(module)


def test_damaged_or_older_files_of_digests_are_not_read(copied: Path, tmp_path: Path) -> None:
    kept, module = tmp_path / "code.json", "features.build"
    expected = SourceTree(copied, kept).digest(module)
    document = json.loads(kept.read_text())
    for path in document["files"]:
        document["files"][path][1] = "0" * 64
    kept.write_text(json.dumps({**document, "reader": "another"}))
    assert SourceTree(copied, kept).digest(module) == expected
    kept.write_text("[1")
    assert SourceTree(copied, kept).digest(module) == expected
