"""Every hour: obey the registry's alias, take in what has arrived, count it.

    pull_registry -> ingest -> count

Trained weights stay as they are. While another command works in the workspace, an hour is left out.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable
from recsys_command import PARTITIONS, CommandOperator, dag_settings, of_shop, of_workspace

with DAG(
    **dag_settings("recsys_hourly", within=timedelta(minutes=50), retries=0),
    description="The registry's alias, new counts, new items",
    schedule=CronTriggerTimetable("15 * * * *", timezone="UTC"),
    doc_md=__doc__,
):
    pull = CommandOperator(
        task_id="pull_registry", arguments=["registry", "pull", *of_workspace()], skip_if_busy=True
    )
    ingest = CommandOperator(
        task_id="ingest",
        arguments=["ingest", *of_shop()],
        skip_if_busy=True,
        # A registry that refuses must not keep events from being counted.
        trigger_rule="all_done",
        outlets=[PARTITIONS],
    )
    # No bundle is announced: the monitor judges days, not hours.
    count = CommandOperator(
        task_id="count",
        arguments=["update", "--counts-only", "--quiet", *of_shop()],
        skip_if_busy=True,
    )
    pull >> ingest >> count
