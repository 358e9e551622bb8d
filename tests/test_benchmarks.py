"""Every benchmark script still imports what it measures."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, sys
failed = 0
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        ours = error.name.split(".")[0] in ("tests", "recsys", "pipelines", "features", "serving")
        if ours:
            print(module, error)
            failed += 1
    except Exception as error:
        print(module, repr(error))
        failed += 1
sys.exit(failed)
"""


@pytest.mark.slow
def test_every_benchmark_imports() -> None:
    """A peer that is not installed may be missing; a name of ours may not."""
    scripts = sorted((ROOT / "tests" / "benchmarks").glob("*/*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in scripts]
    assert len(modules) > 30
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
