"""Run the tests nearest to what changed, for at most 80 seconds: python -m tests.quick

Nearest first: test files that changed, those that import a changed module or bear its name, those
that import a module that does. Slow tests and tests of a GPU are left out: `make test`.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.engine.code import INSTALLED

ROOT = Path(__file__).parents[1]
SECONDS = 80


def changed_files(since: str) -> set[str]:
    """List the Python files that differ from a commit, and those that git does not know yet."""
    commands = (
        ["git", "diff", "--name-only", since, "--", "*.py"],
        ["git", "ls-files", "--others", "--exclude-standard", "--", "*.py"],
    )
    outputs = [subprocess.check_output(one, cwd=ROOT, text=True) for one in commands]
    return {line for output in outputs for line in output.splitlines()}


def imports_of_test(path: Path) -> set[str]:
    """List the dotted names that a test file imports; for ``from a import b`` both of its parts."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def ranked_tests(changed: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the test files that a change may touch, each with its distance from it."""
    modules = {name for name, path in INSTALLED.modules.items() if path in changed}
    importers = {name for name in INSTALLED.modules if modules & set(INSTALLED.imports(name))}
    own = {f"test_{Path(path).name}" for path in changed}
    helpers = {path.removesuffix(".py").replace("/", ".") for path in changed}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        imported = imports_of_test(path)
        if name in changed:
            yield 0, name
        elif path.name in own or imported & (modules | helpers):
            yield 1, name
        elif imported & importers:
            yield 2, name


class TimeLimit:
    """Stops a session of tests after a time, and counts those that are left."""

    def __init__(self) -> None:
        self.ends = time.monotonic() + SECONDS
        self.done = 0

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.done += 1
        left = len(item.session.items) - self.done
        if time.monotonic() > self.ends and left:
            item.session.shouldstop = f"{SECONDS} s are over, {left} tests are left for make test"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--since", default="HEAD", help="Commit to compare with, such as main.")
    files = [name for _, name in sorted(ranked_tests(changed_files(parser.parse_args().since)))]
    if not files:
        sys.stdout.write("no Python file differs; name a commit: --since main\n")
        return 0
    options = ["-q", "-x", "-m", "not gpu and not slow", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, *files], plugins=[TimeLimit()]))


if __name__ == "__main__":
    sys.exit(main())
