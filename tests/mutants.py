"""Plant known faults one at a time and check that their tests fail.

Run as ``python -m tests.mutants [NAME ...]``. ``mutants.toml`` lists a fault an entry: a text that
occurs once in a file, its replacement, and the tests that must fail with it. Faults are planted in
copies of the tree, uncommitted changes included, one a core. A run of all writes ``mutants.md``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutants.toml"
TABLE = LIST.with_suffix(".md")
HEAD = "| --- | --- | --- | --- | --- |"
SECONDS = 300
"""Time limit of the tests of one fault. A test that hangs has not named the fault."""


class Mutant(NamedTuple):
    name: str
    file: str
    find: str
    replace: str
    tests: list[str]


def read_mutants() -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text("utf-8"))["mutant"]]


def copy_tree(to: Path) -> None:
    """Copy what git tracks or would track."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: Sequence[str], seconds: int = SECONDS) -> tuple[int | None, str]:
    """Run tests in a tree; return pytest's exit code, None if they hang, and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    # Python tells a module's age in seconds, and a fault may keep the file's size.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {seconds} s"
    return ran.returncode, ran.stdout + ran.stderr


def planted(tree: Path, mutant: Mutant) -> str:
    """Run a mutant's tests with its fault in place and say how they ended."""
    path = tree / mutant.file
    sound = path.read_text("utf-8") if path.exists() else ""
    if (times := sound.count(mutant.find)) != 1:
        return f"stale: its text occurs {times} times in {mutant.file}"
    path.write_text(sound.replace(mutant.find, mutant.replace), "utf-8")
    try:
        code, output = run_tests(tree, mutant.tests)
    finally:
        path.write_text(sound, "utf-8")
    if code == 1:
        return "caught"
    return "survived" if code == 0 else f"not judged: pytest ended with {code}\n{output[-2000:]}"


def plant_all(trees: Sequence[Path], mutants: Sequence[Mutant]) -> list[tuple[str, float]]:
    """Plant faults, one at a time in each tree; return how each ended, and its seconds."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def plant(mutant: Mutant) -> tuple[str, float]:
        tree, begin = free.get(), time.perf_counter()
        try:
            ended = planted(tree, mutant)
        finally:
            free.put(tree)
        print(f"{mutant.name}: {ended}", flush=True)
        return ended, time.perf_counter() - begin

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(plant, mutants))


def write_table(mutants: Sequence[Mutant], ended: Sequence[tuple[str, float]]) -> None:
    """Write the faults, what became of each, and by which tests."""
    lines = ["# Planted faults", "", "| fault | file | ended | seconds | tests |", HEAD]
    for mutant, (how, seconds) in zip(mutants, ended, strict=True):
        tests = ", ".join(test.rpartition("::")[2] for test in mutant.tests)
        how = how.splitlines()[0]
        lines.append(f"| {mutant.name} | {mutant.file} | {how} | {seconds:.0f} | {tests} |")
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")


def main(names: list[str]) -> int:
    mutants = read_mutants()
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        print(f"mutants.toml has no {', '.join(sorted(unknown))}")
        return 2
    mutants = [mutant for mutant in mutants if not names or mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Path(folder, str(number)) for number in range(os.cpu_count() or 1)]
        for tree in trees:
            copy_tree(tree)
        every = sorted({test for each in mutants for test in each.tests})
        code, output = run_tests(trees[0], every, SECONDS + 30 * len(every))
        if code != 0:
            print(f"the tests fail without a fault (pytest ended with {code})\n{output[-4000:]}")
            return 1
        ended = plant_all(trees, mutants)
    if not names:
        write_table(mutants, ended)
    caught = sum(how == "caught" for how, _ in ended)
    print(f"mutants: {caught} of {len(mutants)} caught")
    return int(caught < len(mutants))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant (default: all)")
    sys.exit(main(parser.parse_args().names))
