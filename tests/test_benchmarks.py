"""Every benchmark script starts, and results are written in the form that readers rely on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# One process for all: most of the time is importing torch.
START_ALL = """
import contextlib, io, runpy, sys
failed = 0
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        if not end.code and "usage:" in said.getvalue():
            continue
        print(module, end.code)
    except Exception as error:
        print(module, repr(error))
    failed += 1
sys.exit(failed)
"""

MEASURE = """
from tests.benchmarks.harness import Row, as_json, as_table
rows = [
    Row(name="small: time", value=2.0, unit="ms", peer="torch", peer_value=5.0, min_ratio=2),
    Row(name="small: memory", value=3.0, unit="MiB", at_most=2),
    Row(name="large: time", value=4.0, unit="ms", peer="torch", peer_value=4.0, min_ratio=2),
    Row(name="large: memory", value=1.0, unit="MiB", at_most=2),
    Row(name="copy rate", value=4.1, unit="TB/s"),
]
print(as_json({"device": "a CPU"}, rows))
print("----")
print(as_table(rows))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_benchmark_starts() -> None:
    scripts = sorted((ROOT / "tests" / "benchmarks").glob("*/benchmark_*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in scripts]
    assert len(modules) > 10
    done = run(START_ALL, *modules)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_result_has_a_line_for_each_measurement_and_a_table_of_cases() -> None:
    done = run(MEASURE)
    assert done.returncode == 0, done.stderr
    text, table = done.stdout.split("----\n")
    document = json.loads(text)
    assert len(text.strip().splitlines()) == len(document["rows"]) + 2
    first, too_much, slow, *_ = document["rows"]
    assert first["ratio"] == 2.5
    assert first["peer"] == "torch 5 ms"
    assert [row.get("met") for row in document["rows"]] == [True, False, False, True, None]
    assert too_much["goal"] == "<= 2 MiB"
    assert "goal" in slow
    assert "| case | time, ms; goal >= 2x | memory, MiB; goal <= 2 MiB |" in table
    assert "| small | 2 (torch 5 ms, 2.50x; met) | 3 (**missed**) |" in table
    assert "| copy rate | 4.1 TB/s |" in table
