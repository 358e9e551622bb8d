import json
import time

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.doctor import doctor
from pipelines.doctor.libraries import CheckResult, Environment, Probe, check_library, run_probe

CPU = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0", "numpy": "2.4.6"}
CUDA = {"torch": "2.11.0+cu130", "numpy": "2.1.0"}


def environment(versions: dict[str, str], error: str | None = None) -> Environment:
    """An environment with these distributions, in which every import works or fails alike."""
    versions = {name: version for name, version in versions.items() if version}
    return Environment(versions, probe=lambda _code: Probe(error=error))


def test_a_library_that_crashes_or_hangs_costs_one_line():
    for code, reported in {
        "import os; os.abort()": "crashed with SIGABRT",
        "raise ImportError('undefined symbol: _ZN3c10')": "ImportError: undefined symbol",
        "import sys; sys.exit(3)": "ended with code 3",
        "print('no json')": "printed no answer",
        "pass": "printed no answer",
    }.items():
        assert reported in (run_probe(code, 60.0).error or "")
    begin = time.monotonic()
    assert "no answer in 1 s" in (run_probe("import time; time.sleep(60)", 1.0).error or "")
    assert time.monotonic() - begin < 50


@pytest.mark.parametrize(
    ("name", "versions", "error", "status", "reported"),
    [
        ("fbgemm", CPU, None, "ok", "fbgemm-gpu-cpu 1.8.0"),
        ("fbgemm", {**CPU, "fbgemm-gpu": "1.6.0"}, None, "fail", "only one build"),
        ("fbgemm", {**CPU, "fbgemm-gpu-cpu": "", "fbgemm-gpu": "1.8.0"}, None, "fail", "one build"),
        ("fbgemm", {**CPU, "fbgemm-gpu-cpu": "1.7.0"}, None, "fail", "not the version"),
        ("fbgemm", {**CPU, "fbgemm-gpu-cpu": ""}, None, "absent", "not installed"),
        ("fbgemm", {**CUDA, "fbgemm-gpu": "1.6.0"}, None, "ok", "fbgemm-gpu 1.6.0"),
        ("fbgemm", {**CUDA, "fbgemm-gpu-cpu": "1.6.0"}, None, "fail", "of torch's kind"),
        ("fbgemm", {**CPU, "torch": "2.12.1+cpu"}, None, "warn", "1.8.0"),
        ("fbgemm", {"torch": "2.12.1+cpu"}, None, "absent", "none"),
        ("fbgemm", CPU, "OSError: undefined symbol", "fail", "undefined symbol"),
        ("triton", {**CPU, "triton": "3.10.0"}, None, "ok", "triton 3.10.0"),
        ("triton", {**CPU, "triton": "3.6.0"}, None, "warn", "not the version"),
        ("triton", {**CPU, "triton": "3.6.0", "numpy": "1.26.4"}, None, "ok", "triton 3.6.0"),
        ("triton", {**CUDA, "triton": "3.6.0"}, None, "ok", "triton 3.6.0"),
        ("faiss", CPU, None, "fail", "not installed"),
        ("minilm", CPU, None, "absent", "content.encoder"),
    ],
)
def test_a_library_must_be_there_fit_torch_and_work(name, versions, error, status, reported):
    result = check_library(environment(versions, error), name)
    assert (result.status, result.fix is None) == (status, status == "ok" or result.found == "none")
    assert reported in result.found


def test_a_processor_without_the_instructions_of_polars_gets_the_build_for_it():
    result = check_library(environment({"polars": "2.1.0"}, "crashed with SIGILL"), "polars")
    assert result.status == "fail"
    assert "rtcompat" in (result.fix or "")


OFF = ["topk_search (RECSYS_KERNELS_OFF names it: torch)"]


@pytest.mark.parametrize(
    ("driver", "probe", "status", "reported"),
    [
        (None, Probe(values={"cuda": "13.0", "name": None, "off": []}), "absent", "on the CPU"),
        ("smi", Probe(values={"cuda": None, "name": None, "off": []}), "warn", "sees no device"),
        ("smi", Probe(values={"cuda": "13.0", "name": "H100", "off": []}), "ok", "off: none"),
        ("smi", Probe(values={"cuda": "13.0", "name": "H100", "off": OFF}), "warn", "topk_search"),
        ("smi", Probe(error="ValueError: RECSYS_KERNELS_OFF names hstu"), "fail", "hstu"),
    ],
)
def test_a_gpu_is_asked_and_kernels_that_are_off_are_named(
    driver, probe, status, reported, monkeypatch
):
    monkeypatch.setattr(doctor.shutil, "which", lambda _: driver)
    result = doctor.check_gpu(Environment(versions=CUDA, probe=lambda _: probe))
    assert result.status == status
    assert reported in result.found
    assert (result.fix is not None) == (status in ("warn", "fail"))


@pytest.mark.parametrize(
    ("probe", "status", "found"),
    [
        (Probe(values={"why": ""}), "ok", "compiled functions"),
        (Probe(values={"why": "there is no C compiler on PATH"}), "absent", "no C compiler"),
        (Probe(error="gave no answer in 60 s"), "absent", "gave no answer"),
    ],
)
def test_a_compiler_is_optional(probe: Probe, status: str, found: str) -> None:
    result = doctor.check_compiler(Environment(versions=CPU, probe=lambda _: probe))
    assert result.status == status
    assert found in result.found


@pytest.mark.parametrize(("status", "code"), [("fail", 3), ("warn", 0), ("absent", 0)])
def test_only_a_failure_changes_the_exit_code_and_each_fix_is_printed(status, code, monkeypatch):
    results = [
        CheckResult("one", "ok", "1.0", "1.0"),
        CheckResult("two", status, "[bold]1.0", "2.0", "mend two"),  # type: ignore[arg-type]
    ]
    monkeypatch.setattr(doctor, "run_checks", lambda seconds: results)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == code
    assert "[bold]1.0" in shown.stdout
    assert ": mend two" in shown.stdout
    document = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert document["ok"] is (code == 0)
    assert set(document["checks"][0]) == {"name", "status", "found", "wanted", "fix"}
