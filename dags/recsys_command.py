"""What the DAGs share: how a command is run, where things are, and who hears of a failure.

Each task runs one command of the command line in the platform's own environment, so nothing of the
platform is imported here. Set in the environment of the scheduler and its workers:

    RECSYS_CONFIG      TOML file of the shop; /etc/recsys/shop.toml by default
    RECSYS_WORKSPACE   its one, long-lived workspace; /var/lib/recsys/shop by default
    RECSYS_BUNDLES     folder of the released bundles; <workspace>/bundles by default
    RECSYS_COMMAND     path of the command, such as /srv/recsys/.venv/bin/recsys; recsys by default
    RECSYS_STORE       optional: the online store (sqlite:FOLDER, redis://...), for recsys parity
    RECSYS_SERVING_CONFIG  optional: the servers' file of surfaces and rules, for recsys parity
    RECSYS_ON_FAILURE  optional: who hears of a failure: a command line, or an address (https://...)
                       that takes a POST; either receives one JSON document
    RECSYS_DEADLINES   optional: "off" for `airflow dags test`, which in Airflow 3.3 fails at the
                       end of a DAG that has a deadline
"""

import json
import logging
import os
import shlex
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import Asset, BaseOperator, DeadlineAlert, DeadlineReference, SyncCallback
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

PARTITIONS = Asset(name="recsys_partitions", uri="recsys://partitions")
"""Days of events that were checked and count."""
BUNDLE = Asset(name="recsys_bundle", uri="recsys://bundle")
"""What is served."""
GPU_POOL = "recsys_gpu"
"""Tasks that train: as many at once as the pool has slots."""
START = datetime(2026, 1, 1, tzinfo=UTC)

REFUSED, ALARM, BUSY = 3, 5, 75
FINAL = {
    2: "invalid command, configuration or data",
    REFUSED: "a check refused",
    ALARM: "an alarm was raised",
    70: "training diverged",
}
"""Exit codes that a second try would end with as well."""
MOST_TRIES = 3
"""Of a command that fails; one that finds the workspace in use may be tried more often."""
NOTICE_SECONDS = 60


def address() -> dict[str, str]:
    """Read where things are."""
    workspace = os.environ.get("RECSYS_WORKSPACE", "/var/lib/recsys/shop")
    return {
        "config": os.environ.get("RECSYS_CONFIG", "/etc/recsys/shop.toml"),
        "workspace": workspace,
        "bundles": os.environ.get("RECSYS_BUNDLES", f"{workspace}/bundles"),
    }


def of_shop() -> list[str]:
    """Return the run, for commands that read the shop's settings."""
    place = address()
    keys = {"workspace": place["workspace"], "release.bundles": place["bundles"]}
    settings = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    return [place["config"], *(part for one in settings for part in ("--set", one))]


def of_workspace() -> list[str]:
    """Return the run, for commands that read what the last run wrote."""
    return [address()["workspace"]]


class CommandOperator(BaseOperator):
    """Runs ``recsys ARGUMENTS``, without a shell; fails for good where another try cannot help.

    Args:
        arguments: As they stand on the command line.
        retry_invalid: Whether exit code 2 may pass by itself, as where a store is out of reach.
        skip_if_busy: Whether to leave it to the next run while another command works.
    """

    def __init__(
        self,
        *,
        arguments: list[str],
        retry_invalid: bool = False,
        skip_if_busy: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.arguments = arguments
        self.retry_invalid, self.skip_if_busy = retry_invalid, skip_if_busy
        self._hook = SubprocessHook()

    def execute(self, context: Any) -> None:
        if code := self.run_command(self.arguments):
            self.end(code, self.arguments, context["ti"].try_number)

    def on_kill(self) -> None:
        self._hook.send_sigterm()

    def run_command(self, arguments: list[str]) -> int:
        """Run a command, its output in the task's log; return its exit code."""
        program = os.environ.get("RECSYS_COMMAND", "recsys")
        return self._hook.run_command([program, *arguments]).exit_code

    def end(self, code: int, arguments: list[str], try_number: int) -> None:
        """Raise what an exit code other than 0 calls for."""
        words = f"recsys {arguments[0]}: exit code {code}"
        if code == BUSY:
            if self.skip_if_busy:
                raise AirflowSkipException(f"{words}; left to the next run, which is soon")
            raise AirflowException(f"{words}: in use, or something still waits")
        if code in FINAL and not (code == 2 and self.retry_invalid):
            raise AirflowFailException(f"{words}, {FINAL[code]}; another try would end the same")
        if try_number >= MOST_TRIES:
            raise AirflowFailException(f"{words}; tried {try_number} times")
        raise AirflowException(words)


def notify(document: Mapping[str, str]) -> None:
    """Hand a notice to the command or the address in RECSYS_ON_FAILURE, as JSON.

    A command reads it from its standard input, so nothing in it is ever part of a command line.
    """
    target = os.environ.get("RECSYS_ON_FAILURE", "")
    log = logging.getLogger("recsys")
    log.error("notice: %s", json.dumps(document))
    if not target:
        return
    data = json.dumps(document).encode()
    try:
        if target.startswith(("http://", "https://")):
            request = Request(target, data, {"Content-Type": "application/json"})
            urlopen(request, timeout=NOTICE_SECONDS).close()
        else:
            subprocess.run(shlex.split(target), input=data, check=True, timeout=NOTICE_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.error("RECSYS_ON_FAILURE did not take the notice: %s", error)


def task_failed(context: Any) -> None:
    """Say that a task has failed and will not be tried any more."""
    task = context["ti"]
    notify(
        {
            "kind": "failure",
            "dag": task.dag_id,
            "task": task.task_id,
            "run": context["run_id"],
            "error": str(context.get("exception", "")),
        }
    )


def deadline_missed(context: Any = None, dag: str = "") -> None:
    """Say that a run of a DAG has not ended in time."""
    run = (context or {}).get("dag_run", {})
    run_id = run.get("dag_run_id", "") if isinstance(run, Mapping) else getattr(run, "run_id", "")
    notify({"kind": "deadline", "dag": dag, "run": str(run_id)})


def dag_settings(dag_id: str, *, within: timedelta, retries: int = 9) -> dict[str, Any]:
    """Give what all DAGs have.

    Args:
        dag_id: Its name.
        within: From when a run is queued until somebody hears that it has not ended.
        retries: So often a busy workspace is waited for, twenty minutes each time.
    """
    late = SyncCallback(deadline_missed, kwargs={"dag": dag_id})
    deadline = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=within, callback=late
    )
    return {
        "dag_id": dag_id,
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": 3 * within,
        "deadline": None if os.environ.get("RECSYS_DEADLINES") == "off" else deadline,
        "default_args": {
            "retries": retries,
            "retry_delay": timedelta(minutes=20),
            "execution_timeout": within,
            "on_failure_callback": task_failed,
        },
        "tags": ["recsys"],
    }
