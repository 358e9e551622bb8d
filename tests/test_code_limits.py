"""The house rules that a linter does not know: lengths, names, and what is never called.

Lengths are explained in CONTRIBUTING.md. A function's docstring does not count: saying more about
a shape must not cost a line of code.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("recsys", "features", "pipelines", "serving")
FOLDERS = (*PACKAGES, "dags", "tests")

MAX_FILE_LINES = 600
MAX_FILE_LINES_P90 = 400
MAX_PACKAGE_FILE_LINES_P90 = 300
MAX_MODULES_IN_FOLDER = 20
MAX_PACKAGE_LINES = 88_000
MAX_README_LINES = 110
MAX_RESULT_LINES = 8_500
MAX_FUNCTION_LINES = 60
FORBIDDEN_NAMES = {"utils", "common", "helpers", "base", "misc", "manager"}
# Formats that run code when they are read.
FORBIDDEN_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"torch.load", "torch.save", "numpy.load(allow_pickle)", "load_model"}


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def trees(*folders: str) -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): parsed(path) for path in python_files(*folders)}


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, the docstring left out."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def may_be_long(path: str, function: str) -> bool:
    kernel = path.endswith(("triton_kernel.py", "triton_backward.py", "triton_router.py"))
    return kernel or (path, function) == ("recsys/training/loop.py", "train")


def dotted(node: ast.expr) -> list[str]:
    """Parts of a dotted name; a call or an index that it begins with is one empty part."""
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def called_names(tree: ast.Module) -> set[str]:
    """Dotted names of all calls, with aliases of torch and numpy spelt out."""
    aliases = {"np": "numpy"}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts = dotted(node.func)
            name = ".".join([aliases.get(parts[0], parts[0]), *parts[1:]])
            names |= {name, parts[-1]} if len(parts) > 1 else {name}
            allows = any(
                keyword.arg == "allow_pickle"
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
                for keyword in node.keywords
            )
            if allows:
                names.add("numpy.load(allow_pickle)")
    return names


def imported_modules(tree: ast.Module) -> set[str]:
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def test_files_are_short():
    lengths = {
        str(path.relative_to(ROOT)): num_lines(path)
        for path in python_files(*FOLDERS)
        if "presets" not in path.parts
    }
    too_long = {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}
    assert not too_long, f"split by subject, at most {MAX_FILE_LINES} lines: {too_long}"
    for folder in FOLDERS:
        own = sorted(length for path, length in lengths.items() if path.startswith(f"{folder}/"))
        if own:
            p90 = own[int(0.9 * (len(own) - 1))]
            assert p90 <= MAX_FILE_LINES_P90, f"nine files of ten in {folder} are too long: {p90}"


def test_packages_are_small_in_short_files_and_folders_of_few_modules():
    lengths = sorted(num_lines(path) for path in python_files(*PACKAGES))
    assert sum(lengths) <= MAX_PACKAGE_LINES
    p90 = lengths[int(0.9 * (len(lengths) - 1))]
    assert p90 <= MAX_PACKAGE_FILE_LINES_P90, f"nine files of ten are too long: {p90}"
    modules = Counter(path.parent for path in python_files(*FOLDERS))
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder, count in modules.items()
        if count > MAX_MODULES_IN_FOLDER
    }
    assert not crowded, f"sort into folders, at most {MAX_MODULES_IN_FOLDER} modules: {crowded}"


def test_the_readme_and_the_results_of_benchmarks_are_short():
    assert num_lines(ROOT / "README.md") <= MAX_README_LINES
    results = (ROOT / "tests" / "benchmarks" / "results").rglob("*")
    texts = [path for path in results if path.suffix in {".json", ".jsonl", ".md", ".csv", ".txt"}]
    assert sum(map(num_lines, texts)) <= MAX_RESULT_LINES


def test_functions_are_short_and_imports_absolute():
    too_long, relative = {}, []
    for path, tree in trees(*FOLDERS).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level > 0:
                relative.append(f"{path}:{node.lineno}")
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function_lines(node) > MAX_FUNCTION_LINES and not may_be_long(path, node.name):
                too_long[f"{path}:{node.lineno} {node.name}"] = function_lines(node)
    assert not too_long, f"split at its steps, at most {MAX_FUNCTION_LINES} lines: {too_long}"
    assert not relative, f"import by the full name: {sorted(relative)}"


def test_files_are_named_by_their_subject():
    named = {
        str(path.relative_to(ROOT)): {part.removesuffix(".py") for part in path.parts}
        for path in python_files(*FOLDERS)
    }
    vague = {path for path, parts in named.items() if parts & FORBIDDEN_NAMES}
    vague |= {
        path for path, parts in named.items() if any(part.endswith("_utils") for part in parts)
    }
    assert not vague, f"name these by what they hold: {sorted(vague)}"


@pytest.mark.parametrize("package", [*PACKAGES, "dags"])
def test_nothing_reads_a_format_that_runs_code(package):
    for path, tree in trees(package).items():
        roots = {module.split(".")[0] for module in imported_modules(tree)}
        assert not roots & FORBIDDEN_MODULES, f"{path}: use safetensors, .npy, Parquet or JSON"
        doors = {"torch.load", "torch.save"} & imported_modules(tree)
        calls = FORBIDDEN_CALLS & called_names(tree) | doors
        assert not calls, f"{path} calls {sorted(calls)}: use safetensors, .npy, Parquet or JSON"


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("import torch\ntorch.load('x')", "torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "numpy.load(allow_pickle)"),
        ("import mlflow\nmlflow.pytorch.load_model('x')", "load_model"),
    ],
)
def test_the_search_for_calls_finds_them(source, caught):
    assert caught in called_names(ast.parse(source))


def test_the_search_for_calls_lets_safe_loading_pass():
    source = "import numpy as np\nnp.load('x', mmap_mode='r', allow_pickle=False)"
    assert not FORBIDDEN_CALLS & called_names(ast.parse(source))
