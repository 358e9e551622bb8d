import json
import socket
import threading
import time
from contextlib import closing

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.doctor import doctor
from pipelines.doctor import libraries as library_checks
from pipelines.doctor import machine as machine_checks
from pipelines.doctor.check import CheckResult, Environment, Probe
from pipelines.doctor.doctor import run_probe

CPU = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0", "numpy": "2.4.6"}


def environment(versions: dict[str, str | None], error: str | None = None) -> Environment:
    """An environment with these distributions, in which every import works or fails alike."""
    return Environment(
        versions={name: one for name, one in versions.items() if one is not None},
        probe=lambda _code: Probe(error=error, values={"cuda": None, "count": 0}),
    )


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("import os; os.abort()", "crashed with SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "crashed with SIGSEGV"),
        ("raise ImportError('undefined symbol: _ZN3c10')", "ImportError: undefined symbol"),
        ("import sys; sys.exit(3)", "ended with code 3"),
        ("print('no json')", "printed no answer"),
        ("pass", "printed no answer"),
    ],
)
def test_a_library_that_crashes_costs_one_line(code: str, reported: str):
    probe = run_probe(code, 60.0)
    assert reported in (probe.error or "")


def test_a_library_that_hangs_is_given_up():
    begin = time.monotonic()
    assert "no answer in 1 s" in (run_probe("import time; time.sleep(60)", 1.0).error or "")
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("versions", "status", "reported"),
    [
        (CPU, "ok", "fbgemm-gpu-cpu 1.8.0"),
        (
            {**CPU, "fbgemm-gpu": "1.6.0"},
            "fail",
            "fbgemm-gpu-cpu 1.8.0 and fbgemm-gpu 1.6.0: only one build",
        ),
        (
            {**CPU, "fbgemm-gpu-cpu": None, "fbgemm-gpu": "1.8.0"},
            "fail",
            "only one build may be installed, of torch's kind",
        ),
        ({**CPU, "fbgemm-gpu-cpu": "1.7.0"}, "fail", "not the version that is needed"),
        ({**CPU, "fbgemm-gpu-cpu": None}, "absent", "not installed"),
        ({"torch": "2.11.0+cu130", "fbgemm-gpu": "1.6.0"}, "ok", "fbgemm-gpu 1.6.0"),
        (
            {"torch": "2.11.0+cu130", "fbgemm-gpu-cpu": "1.6.0"},
            "fail",
            "only one build may be installed, of torch's kind",
        ),
        ({"torch": "2.12.1+cpu", "fbgemm-gpu-cpu": "1.8.0"}, "warn", "1.8.0"),
        ({"torch": "2.12.1+cpu"}, "absent", "none"),
    ],
)
def test_fbgemm_must_be_the_one_build_of_this_torch(
    versions: dict[str, str | None], status: str, reported: str
):
    result = library_checks.check_library(environment(versions), "fbgemm")
    assert result.status == status
    assert reported in result.found


def test_a_right_version_that_fails_at_import_is_a_failure_with_its_error():
    result = library_checks.check_library(
        environment(CPU, error="OSError: undefined symbol"), "fbgemm"
    )
    assert result.status == "fail"
    assert "undefined symbol" in result.found


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({**CPU, "triton": "3.7.1"}, "ok"),
        ({**CPU, "triton": "3.6.0"}, "warn"),
        ({**CPU, "triton": "3.6.0", "numpy": "1.26.4"}, "ok"),
        ({**CPU, "triton": "3.10.0"}, "ok"),
        ({"torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "2.1.0"}, "ok"),
        (CPU, "absent"),
    ],
)
def test_old_triton_cannot_interpret_beside_numpy_2(versions: dict[str, str | None], status: str):
    assert library_checks.check_library(environment(versions), "triton").status == status


ON, OFF = ["softmax_rows", True, ""], ["topk_search", False, "RECSYS_KERNELS_OFF names it: torch"]


@pytest.mark.parametrize(
    ("probe", "status", "reported", "fix"),
    [
        (Probe(values={"device": "cpu", "tuned": None, "uses": [ON]}), "absent", "plain", None),
        (
            Probe(values={"device": "cuda", "tuned": True, "uses": [ON]}),
            "ok",
            "on: softmax_rows",
            None,
        ),
        (
            Probe(values={"device": "cuda", "tuned": False, "uses": [ON]}),
            "warn",
            "untuned",
            None,
        ),
        (
            Probe(values={"device": "cuda", "tuned": True, "uses": [ON, OFF]}),
            "warn",
            "off: topk_search (RECSYS_KERNELS_OFF names it: torch)",
            "unset RECSYS_KERNELS_OFF",
        ),
        (
            Probe(error="ValueError: RECSYS_KERNELS_OFF names hstu, which is no kernel"),
            "fail",
            "no kernel",
            "unset RECSYS_KERNELS_OFF",
        ),
    ],
)
def test_kernels_in_use_are_listed_with_the_reasons_of_others(
    probe: Probe, status: str, reported: str, fix: str | None
) -> None:
    here = Environment(versions=CPU, probe=lambda _: probe)
    result = library_checks.check_kernels(here)
    assert (result.status, result.fix) == (status, fix)
    assert reported in result.found


def test_a_processor_without_the_instructions_of_polars_gets_the_build_for_it():
    here = environment({"polars": "2.1.0"}, error="crashed with SIGILL")
    result = library_checks.check_library(here, "polars")
    assert result.status == "fail"
    assert "rtcompat" in (result.fix or "")


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("reply", "status"), [(b"+PONG\r\n", "ok"), (b"-NOAUTH required\r\n", "ok"), (b"HTTP", "warn")]
)
def test_redis_is_asked(reply: bytes, status: str, monkeypatch: pytest.MonkeyPatch):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("RECSYS_STORE", f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        result = machine_checks.check_redis(environment({}))
        thread.join()
    assert result.status == status


def test_services_that_are_gone_are_warnings_without_their_passwords(
    monkeypatch: pytest.MonkeyPatch,
):
    port = free_port()
    monkeypatch.setenv("RECSYS_STORE", f"redis://:secret@127.0.0.1:{port}/0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://anna:secret@127.0.0.1:{port}")
    for check in (machine_checks.check_redis, machine_checks.check_mlflow_server):
        result = check(environment({}))
        assert result.status == "warn"
        assert "secret" not in repr(result)
        assert result.fix is not None


def result(status: str, name: str = "one") -> CheckResult:
    return CheckResult(
        name=name,
        status=status,  # type: ignore[arg-type]
        found="[bold]1.0",
        wanted="2.0",
        fix=f"mend {name}",
    )


@pytest.mark.parametrize(("status", "code"), [("fail", 3), ("warn", 0), ("absent", 0)])
def test_only_a_failure_changes_the_exit_code(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor, "run_checks", lambda seconds: [result("ok"), result(status)])
    assert CliRunner().invoke(app, ["doctor"]).exit_code == code
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == code
    document = json.loads(shown.stdout)
    assert document["ok"] is (code == 0)
    assert set(document["checks"][0]) == {"name", "status", "found", "wanted", "fix"}


def test_the_table_shows_each_fix_and_takes_no_markup_from_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
):
    results = [result("fail", "torch"), result("absent", "redis"), result("ok")]
    monkeypatch.setattr(doctor, "run_checks", lambda seconds: results)
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert "[bold]1.0" in shown
    assert "torch: mend torch" in shown
    assert "redis: mend redis" in shown
    assert "mend one" not in shown
    assert "1 checks failed: torch" in shown
