"""Every day: what has arrived, the day's increment, and what is to be looked after.

    ingest -> monitor -> update -> sync, gc, parity

``recsys update`` continues the served models on new events, judges the result and releases it, or
keeps what is served (exit code 3, with its reasons). The monitor comes before it, while the served
bundle does not know the day yet; an alarm (5) holds nothing up, and may make the update a full run.
Parity runs where RECSYS_STORE names the store of served lists.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable
from recsys_command import (
    BUNDLE,
    GPU_POOL,
    PARTITIONS,
    CommandOperator,
    address,
    dag_settings,
    of_shop,
    of_workspace,
)

with DAG(
    **dag_settings("recsys_daily", within=timedelta(hours=6)),
    description="A day's increment, released",
    schedule=CronTriggerTimetable("0 3 * * *", timezone="UTC"),
    doc_md=__doc__,
):
    ingest = CommandOperator(
        task_id="ingest",
        arguments=["ingest", *of_shop()],
        retry_invalid=True,
        execution_timeout=timedelta(hours=1),
        outlets=[PARTITIONS],
    )
    monitor = CommandOperator(
        task_id="monitor", arguments=["monitor", *of_shop()], execution_timeout=timedelta(hours=1)
    )
    update = CommandOperator(
        task_id="update",
        arguments=["update", "--quiet", *of_shop()],
        # It ingests what it can by itself.
        trigger_rule="all_done",
        pool=GPU_POOL,
        outlets=[BUNDLE],
    )
    # What is served is looked after whether or not today's increment was released.
    after = {"trigger_rule": "all_done", "execution_timeout": timedelta(hours=1)}
    sync = CommandOperator(task_id="sync", arguments=["registry", "send", *of_workspace()], **after)
    gc = CommandOperator(task_id="gc", arguments=["gc", *of_workspace()], **after)
    ingest >> monitor >> update >> [sync, gc]
    if store := os.environ.get("RECSYS_STORE"):
        checked = [address()["bundles"], "--store", store, "--since", "1d"]
        update >> CommandOperator(task_id="parity", arguments=["parity", *checked], **after)
