"""Every day: from raw events to a released bundle, one task for each stage.

Order and schedule only. Each task runs one stage of the command line in the platform's own
environment, so this file imports nothing of it. A task that ran already is skipped by the command
line itself; a killed one resumes. Set where things are in the scheduler's environment:

    RECSYS_CONFIG      TOML file of the run (required to run, not to load)
    RECSYS_WORKSPACE   folder of the days' workspaces; /var/lib/recsys/runs by default
    RECSYS_BUNDLES     folder of the released bundles, which all days share
    RECSYS_EVENTS      optional: raw events of a day, with {day} for its date
    RECSYS_COMMAND     path of the command, such as /srv/recsys/.venv/bin/recsys; by default recsys
"""

import os
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

# As `recsys stages --json` lists them; a test holds the two equal. Asking the command line each
# time the scheduler reads this file would cost seconds of every minute.
STAGES = (
    "build_features",
    "enrich_items",
    "embed_items",
    "fit_baselines",
    "train_two_tower",
    "train_sequence",
    "build_semantic_ids",
    "train_generative",
    "fit_blend",
    "train_ranker",
    "evaluate",
    "report",
    "refit",
    "build_index",
    "release",
    "adapt_domains",
)
DAY = "{{ data_interval_start | ds }}"
# A day's data may be late or a disk full for a while; bad input stays bad.
DEFAULTS = {
    "retries": 2,
    "retry_delay": timedelta(minutes=5),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=30),
    "execution_timeout": timedelta(hours=6),
}


# A refused release (3) and a training that did not stay finite (70) end equally a second time.
# Not 2, bad input: a day's file may come yet.
FINAL_EXIT_CODES = (3, 70)


class StageOperator(BashOperator):
    """Runs the command of one stage; fails for good where a retry cannot help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(skip_on_exit_code=FINAL_EXIT_CODES, **settings)

    def execute(self, context: Any) -> Any:
        try:
            return super().execute(context)
        except AirflowSkipException as error:
            raise AirflowFailException(f"{error} No retry: it would end the same.") from error


def command(stage: str) -> str:
    """Write the shell command of a stage; {{ }} is filled in by the scheduler."""
    workspaces = os.environ.get("RECSYS_WORKSPACE", "/var/lib/recsys/runs")
    bundles = os.environ.get("RECSYS_BUNDLES", f"{workspaces}/bundles")
    events = os.environ.get("RECSYS_EVENTS")
    parts = [
        os.environ.get("RECSYS_COMMAND", "recsys"),
        "run",
        "--quiet",
        "--config",
        os.environ.get("RECSYS_CONFIG", "/etc/recsys/run.toml"),
        "--workspace",
        f"{workspaces}/{DAY}",
        "--set",
        f'release.bundles="{bundles}"',
    ]
    if events:
        parts += ["--set", f'data.events="{events.replace("{day}", DAY)}"']
    # exec: a stopped task must stop the stage, not the shell around it.
    return "exec " + shlex.join([*parts, "--stage", stage])


with DAG(
    dag_id="recsys_daily",
    description="From raw events to a released bundle",
    # A plain "@daily" has intervals of no length since Airflow 3; a run is of the day before it.
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=20),
    default_args=DEFAULTS,
    tags=["recsys"],
    doc_md=__doc__,
):
    before = None
    for name in STAGES:
        # One after the other: a workspace has one writer at a time.
        task = StageOperator(task_id=name, bash_command=command(name))
        if before is not None:
            before >> task
        before = task
