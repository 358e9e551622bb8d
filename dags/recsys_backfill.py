"""By hand: days of the past, one after the other, each as the daily DAG would have run it.

    airflow dags trigger recsys_backfill --conf '{"from": "2026-01-01", "to": "2026-01-31"}'

Each day's increment sees the events up to that day and no later one. Days that were run already
change nothing and take seconds, so a run that was stopped is started as it was. A day whose
release is refused is noted, and the days go on; the task fails at its end.

One task goes through the days, not a mapped one for each: with `max_active_tis_per_dagrun=1` mapped
tasks start in order, but while a day waits to be tried once more (exit code 75) Airflow starts the
next, which would be trained before the one that it continues.
"""

from datetime import date, timedelta
from typing import Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException
from recsys_command import (
    BUNDLE,
    GPU_POOL,
    PARTITIONS,
    REFUSED,
    CommandOperator,
    dag_settings,
    of_shop,
)


def days_between(first: str, last: str) -> list[str]:
    """List the days from one to another, both included.

    Raises:
        AirflowFailException: They are no dates, or in the wrong order.
    """
    try:
        begin, end = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError as error:
        raise AirflowFailException(f"from and to are days such as 2026-01-31: {error}") from error
    if begin > end:
        raise AirflowFailException(f"from = {first} is later than to = {last}; swap them")
    return [(begin + timedelta(days=place)).isoformat() for place in range((end - begin).days + 1)]


class BackfillOperator(CommandOperator):
    """Runs the command once for each day."""

    def execute(self, context: Any) -> None:
        params, refused = context["params"], []
        for day in days_between(params["from"], params["to"]):
            arguments = [*self.arguments, "--until", day]
            code = self.run_command(arguments)
            if code == REFUSED:
                refused.append(day)
            elif code:
                self.end(code, arguments, context["ti"].try_number)
        if refused:
            raise AirflowFailException(
                f"the releases of {', '.join(refused)} were refused; recsys release explain"
            )


with DAG(
    **dag_settings("recsys_backfill", within=timedelta(hours=48)),
    description="Increments of past days, in order",
    schedule=None,
    params={
        "from": Param("2026-01-01", type="string", format="date", description="First day."),
        "to": Param("2026-01-01", type="string", format="date", description="Last day."),
    },
    doc_md=__doc__,
):
    BackfillOperator(
        task_id="update_each_day",
        arguments=["update", "--quiet", *of_shop()],
        pool=GPU_POOL,
        outlets=[PARTITIONS, BUNDLE],
    )
