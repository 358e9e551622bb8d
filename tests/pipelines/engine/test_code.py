"""The source that each stage depends on, held against the syntax trees."""

from __future__ import annotations

import ast
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipelines.engine.code import INSTALLED, LIBRARIES, PACKAGES, SourceTree, imported_names
from pipelines.engine.stage import always, no_raw_files
from pipelines.stages.list import STAGES

MODULE_OF = {stage.name: stage.function.__module__ for stage in STAGES}


def imports_in(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        yield from imports_in(node)


def names_by_syntax_tree(text: str) -> set[str]:
    names = set()
    for node in imports_in(ast.parse(text)):
        place = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names |= {place + alias.name for alias in node.names}
    return names


@cache
def names_in(path: Path) -> set[str]:
    return names_by_syntax_tree(path.read_text(encoding="utf-8"))


def counting(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] in {*PACKAGES, *LIBRARIES}}


def test_no_import_of_any_module_is_missed() -> None:
    for path in INSTALLED.modules.values():
        text = (INSTALLED.root / path).read_text(encoding="utf-8")
        # A program in a string may add some.
        assert counting(names_by_syntax_tree(text)) <= set(imported_names(text)), path


def test_every_way_to_import_is_seen_and_type_checkers_imports_are_not() -> None:
    text = """
import recsys.data.batch as batch, features
from typing import TYPE_CHECKING
from recsys.models.ranker import (
    model,  # why, (even so)
    network as net,
)

if TYPE_CHECKING:
    from serving.web.app import (
        create_app,
    )

    import mlflow
from polars import col

def late():
    if True:
        from serving import bundle
"""
    assert set(imported_names(text)) == names_by_syntax_tree(text)
    assert "serving.web.app.create_app" not in set(imported_names(text))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(INSTALLED.root / package, root / package)
    return root


class Edited(SourceTree):
    """Reads a file again once it was edited, and keeps what it read of the others."""

    def digests_after_edit(self, path: str, text: str) -> dict[str, str]:
        file = self.root / path
        before = file.read_text(encoding="utf-8")
        file.write_text(before + text, encoding="utf-8")
        self._digests.pop(path, None)
        digests = {name: self.digest(module) for name, module in MODULE_OF.items()}
        file.write_text(before, encoding="utf-8")
        self._digests.pop(path)
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


def test_change_of_a_module_makes_exactly_the_stages_that_import_it_again(copied: Path) -> None:
    tree = Edited(copied)
    before = {name: tree.digest(module) for name, module in MODULE_OF.items()}
    files = {name: closure_by_syntax_tree(copied, module) for name, module in MODULE_OF.items()}
    assert min(map(len, files.values())) > 10
    for path in sorted(set().union(*files.values())):
        after = tree.digests_after_edit(path, "# edited\n")
        changed = {name for name in before if after[name] != before[name]}
        assert changed == {name for name in before if path in files[name]}, path


@pytest.mark.parametrize(
    ("path", "again", "kept"),
    [
        ("serving/bundle/catalogue.py", "release", "train_two_tower"),
        ("serving/bundle/users.py", "release", "evaluate"),
        ("serving/bundle/history_models.py", "release", "fit_blend"),
        ("recsys/kernels/embedding_bag/triton_kernel.py", "train_two_tower", "build_features"),
        ("recsys/kernels/tuned/nvidia-h200.json", "train_two_tower", "build_features"),
        ("pipelines/pages/client/dashboard.css", "report", "evaluate"),
        ("features/histories.py", "build_features", "train_two_tower"),
        ("serving/bundle/__init__.py", "release", "train_two_tower"),
        # A setting of another stage: its values are in the manifests of the stages that read them.
        ("recsys/models/ranker/config.py", "train_ranker", "fit_baselines"),
    ],
)
def test_named_files_and_the_stages_they_shape(
    copied: Path, path: str, again: str, kept: str
) -> None:
    tree = Edited(copied)
    before = {name: tree.digest(module) for name, module in MODULE_OF.items()}
    after = tree.digests_after_edit(path, " ")
    assert after[again] != before[again]
    assert after[kept] == before[kept]


def test_readmes_and_modules_that_nothing_imports_make_nothing_again(copied: Path) -> None:
    tree = Edited(copied)
    before = {name: tree.digest(module) for name, module in MODULE_OF.items()}
    for path in ("recsys/kernels/embedding_bag/README.md", "pipelines/cli/main.py"):
        (copied / path).write_text("print()\n")
    (copied / "recsys/unused.py").write_text("import torch\n")
    again = SourceTree(copied)
    assert before == {name: again.digest(module) for name, module in MODULE_OF.items()}


def test_all_of_a_stage_stands_in_its_module() -> None:
    for stage in STAGES:
        assert stage.function.__module__ == f"pipelines.stages.{stage.name}"
        if stage.raw_files is not no_raw_files:
            assert stage.raw_files.__module__ == stage.function.__module__
        if stage.outputs_exist is not always:
            assert stage.outputs_exist.__module__ == stage.function.__module__


def test_libraries_that_shape_an_artefact_are_in_its_versions() -> None:
    versions = {stage.name: set(stage.versions()) - {"code"} for stage in STAGES}
    assert versions["build_features"] == {"numpy", "polars"}
    assert versions["train_two_tower"] == {"numpy", "torch"}
    assert "faiss-cpu" in versions["build_index"]
    assert {"openai", "transformers"} <= versions["enrich_items"]
    assert {"altair", "jinja2", "vl-convert-python"} <= versions["report"]


def test_looking_at_all_stages_takes_no_time() -> None:
    begin = time.process_time()
    tree = SourceTree(INSTALLED.root)
    for module in MODULE_OF.values():
        tree.digest(module)
        tree.libraries(module)
    assert time.process_time() - begin < 0.5
