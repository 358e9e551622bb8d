"""On each bundle, and every morning whether or not one came: drift, freshness, the state of all.

    monitor -> status

An alarm (exit code 5) fails the task without another try and is handed to RECSYS_ON_FAILURE.
"""

from datetime import timedelta

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable
from recsys_command import BUNDLE, CommandOperator, dag_settings, of_shop, of_workspace

with DAG(
    **dag_settings("recsys_monitoring", within=timedelta(hours=2), retries=2),
    description="Drift, freshness, status",
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("0 8 * * *", timezone="UTC"), assets=[BUNDLE]
    ),
    doc_md=__doc__,
):
    monitor = CommandOperator(task_id="monitor", arguments=["monitor", *of_shop()])
    status = CommandOperator(
        task_id="status", arguments=["status", *of_workspace()], trigger_rule="all_done"
    )
    monitor >> status
