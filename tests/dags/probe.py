"""Run by Airflow's own Python: what the scheduler sees of dags/, and what the operator does.

python probe.py FOLDER      prints one JSON document behind the word PROBE
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag  # type: ignore[import-not-found]
from airflow.serialization.serialized_objects import DagSerialization  # type: ignore[import-not-found]


def task_of(task: Any) -> dict[str, Any]:
    return {
        "after": sorted(task.downstream_task_ids),
        "arguments": task.arguments,
        "pool": task.pool,
        "retries": task.retries,
        "seconds": task.execution_timeout.total_seconds(),
        "callbacks": len(task.on_failure_callback),
        "outlets": [asset.name for asset in task.outlets],
    }


def dag_of(dag: Any) -> dict[str, Any]:
    written = DagSerialization.to_dict(dag)["dag"]
    conditions = str(written["timetable"])
    return {
        "tasks": {task.task_id: task_of(task) for task in dag.tasks},
        "assets": [name for name in ("recsys://bundle", "partitions") if name in conditions],
        "deadline": [alert.interval.total_seconds() for alert in dag.deadline or []],
        "seconds": dag.dagrun_timeout.total_seconds(),
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
    }


def endings() -> dict[str, str]:
    """Name the exception that each exit code ends with."""
    import recsys_command  # type: ignore[import-not-found]

    found = {}
    for code in (0, 1, 2, 3, 5, 70, 71, 74, 75, 137):
        for name, settings, try_number in (
            ("first", {}, 1),
            ("third", {}, 3),
            ("invalid is retried", {"retry_invalid": True}, 1),
            ("busy is skipped", {"skip_if_busy": True}, 1),
        ):
            task = recsys_command.CommandOperator(
                task_id="one", arguments=["-c", f"exit {code}"], **settings
            )
            try:
                task.execute({"ti": SimpleNamespace(try_number=try_number)})
                found[f"{code}, {name}"] = "success"
            except Exception as error:
                found[f"{code}, {name}"] = type(error).__name__
    return found


def notices() -> None:
    """Hand out what a failed task and a late run hand out."""
    import recsys_command

    task = SimpleNamespace(dag_id="recsys_daily", task_id="update")
    error = ValueError("'; touch injected; echo '$(touch injected)")
    recsys_command.task_failed({"ti": task, "run_id": "r1", "exception": error})
    recsys_command.deadline_missed(context={"dag_run": {"dag_run_id": "r2"}}, dag="recsys_daily")


def main(folder: Path) -> None:
    bag = BundleDagBag(str(folder), bundle_path=folder, bundle_name="dags-folder")
    dags = {dag.dag_id: dag_of(dag) for dag in bag.dags.values()}
    errors = {str(path): str(error) for path, error in bag.import_errors.items()}
    notices()
    print("PROBE" + json.dumps({"dags": dags, "errors": errors, "endings": endings()}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
