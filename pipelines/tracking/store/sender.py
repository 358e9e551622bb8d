"""Send an outbox to an MLflow store, in a process of its own.

Sending is idempotent and resumes after a kill of either side: a run is found by its tag, a bundle
by its digest, a file of it by its path and digest; equal metric points are one point.

``pipelines.tracking.tracking`` starts it as
``python -m pipelines.tracking.store.sender OUTBOX CONFIG``.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.config.tracking import TrackingConfig
from pipelines.engine.artifacts import to_json
from pipelines.tracking.outbox import REFUSED, Outbox, read_lines, store_name
from pipelines.tracking.store.companions import COMPANIONS_TAG, send_companions
from pipelines.tracking.store.connection import (
    DIGEST_TAG,
    GONE,
    VERSION_TAG,
    Event,
    answers,
    has_files,
    mlflow_client,
    passing,
    registered,
)
from pipelines.tracking.store.retention import remove_superseded
from pipelines.tracking.store.uploads import AlteredError, OutOfTime, Upload
from pipelines.tracking.tracking import LONGER, SyncResult, is_server, store_uri
from recsys.data.durable import locked, write_durably

RUN_TAG = "recsys.run"
# MLflow takes at most so many a request.
MAX_METRICS = 1000
MAX_PARAMS = 100
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 5000
# Sent again they would be refused again.
NEVER = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST"}


class Sender:
    """Sends the lines of one outbox to one store."""

    def __init__(self, outbox: Outbox, config: TrackingConfig, deadline: float) -> None:
        self.outbox = outbox
        self.config = config
        self.uri = store_uri(config, outbox)
        self.client = mlflow_client(self.uri, config)
        self.deadline = deadline
        self.num_sent = 0
        self.num_refused = 0
        self.path = outbox.path
        """The file that is sent."""
        self.state: dict[str, Any] = {}
        """How far it was sent, and as which run."""

    @cached_property
    def experiment(self) -> str:
        """The experiment's id; made where there is none."""
        found = self.client.get_experiment_by_name(self.config.experiment)
        if found is not None:
            return str(found.experiment_id)
        # A server chooses the place itself.
        place = (self.outbox.path.parent / "artifacts").absolute().as_uri()
        location = None if is_server(self.uri) else place
        return str(self.client.create_experiment(self.config.experiment, location))

    def send_file(self, path: Path) -> None:
        """Send what a file holds beyond what was sent; put it away when it was sent whole."""
        self.path, self.state = path, self.outbox.state(path)
        if self.state.get("uri") != self.uri:
            self.state = {"uri": self.uri, "offset": 0, "run_id": None}
        lines = read_lines(path, self.state["offset"])
        while batch := list(islice(lines, MAX_METRICS)):
            for offset, events in grouped(batch):
                if time.monotonic() > self.deadline:
                    raise OutOfTime
                self.send(events)
                self.state["offset"] = offset
                self.num_sent += len(events)
                self.save_state()
        kinds = [event["event"] for _, event in read_lines(path)]
        if kinds[-1:] == ["end"] and self.state["offset"] >= path.stat().st_size:
            self.put_away(path)

    def save_state(self) -> None:
        """Keep how far the file was sent."""
        write_durably(self.path.with_suffix(".state.json"), to_json(self.state))

    def put_away(self, path: Path) -> None:
        """Move a run that the store has whole out of the way."""
        sent = self.outbox.path / "sent"
        sent.mkdir(exist_ok=True)
        shutil.rmtree(self.outbox.files(path), ignore_errors=True)
        path.with_suffix(".state.json").unlink(missing_ok=True)
        path.replace(sent / path.name)

    def send(self, events: list[Event]) -> None:
        """Send events of one kind; those that the store will never accept are kept aside."""
        from mlflow.exceptions import MlflowException

        verbs: dict[str, Callable[[Event], None]] = {
            "start": self.start,
            "tags": self.tags,
            "artifact": self.artifact,
            "register": self.register,
            "alias": self.alias,
            "companions": self.companions,
            "end": self.end,
        }
        try:
            if (kind := events[0]["event"]) == "metrics":
                self.metrics(events)
            else:
                verbs[kind](events[0])
        except KeyError as error:
            self.refuse(events, f"the record lacks {error}")
        except AlteredError as error:
            self.refuse(events, str(error))
        except MlflowException as error:
            if error.error_code not in NEVER:
                raise
            self.refuse(events, str(error))

    def refuse(self, events: list[Event], reason: str) -> None:
        """Keep events that the store will never accept, with the reason."""
        self.num_refused += len(events)
        with (self.outbox.path / REFUSED).open("a", encoding="utf-8") as file:
            for event in events:
                file.write(json.dumps({"run": self.path.stem, "reason": reason, **event}) + "\n")

    def start(self, event: Event) -> None:
        from mlflow.entities import Param

        found = self.client.search_runs(
            [self.experiment], f"tags.`{RUN_TAG}` = '{self.path.stem}'", max_results=1
        )
        run = found[0] if found else None
        if run is None:
            run = self.client.create_run(
                self.experiment,
                start_time=event["time"],
                run_name=event["stage"],
                tags={RUN_TAG: self.path.stem},
            )
        self.state["run_id"] = run.info.run_id
        self.tags({"values": event["tags"]})
        params = [
            Param(store_name(name), value[:MAX_PARAM_CHARACTERS])
            for name, value in event["params"].items()
        ]
        self.log_batches(MAX_PARAMS, params=params)

    def metrics(self, events: list[Event]) -> None:
        from mlflow.entities import Metric

        points = [
            Metric(store_name(name), float(value), event["time"], event["step"])
            for event in events
            for name, value in event["values"].items()
        ]
        self.log_batches(MAX_METRICS, metrics=points)

    def tags(self, event: Event) -> None:
        from mlflow.entities import RunTag

        tags = [
            RunTag(store_name(name), str(value)[:MAX_TAG_CHARACTERS])
            for name, value in event["values"].items()
        ]
        self.log_batches(MAX_PARAMS, tags=tags)

    def log_batches(self, size: int, **values: list[Any]) -> None:
        """Send values of one kind, at most ``size`` a request."""
        for kind, found in values.items():
            for begin in range(0, len(found), size):
                part = {kind: found[begin : begin + size]}
                self.client.log_batch(self.state["run_id"], **part)

    def artifact(self, event: Event) -> None:
        file = self.outbox.files(self.path) / event["file"]
        if file.is_file():
            self.client.log_artifact(self.state["run_id"], str(file), event["folder"] or None)
        else:
            self.refuse([event], f"{file} is gone")

    def register(self, event: Event) -> None:
        model, version, digest = event["model"], event["version"], event["digest"]
        with passing("RESOURCE_ALREADY_EXISTS"):
            self.client.create_registered_model(model)
        there = registered(self.client, model, **{VERSION_TAG: version, DIGEST_TAG: digest})
        if any(has_files(one) for one in there) or (there and not self.uploads):
            return
        source = self.upload(event) if self.uploads else self.place_of(event["bundle"])
        self.client.create_model_version(
            model,
            source=source,
            run_id=self.state["run_id"],
            tags={
                **{store_name(name): value for name, value in event["tags"].items()},
                VERSION_TAG: version,
                DIGEST_TAG: digest,
            },
            await_creation_for=0,
        )

    @property
    def uploads(self) -> bool:
        return self.config.upload_bundles

    def place_of(self, bundle: str) -> str:
        """Write where a bundle lies on this machine."""
        # A server refuses file: sources outside its own artefacts.
        return f"{'bundle' if is_server(self.uri) else 'file'}://{bundle}"

    def begin_run(self, event: Event) -> None:
        """Give what is sent outside of a stage's run a run of its own."""
        if self.state["run_id"] is None:
            stage = self.path.stem.partition("Z-")[2]
            self.start({"stage": stage, "time": event["time"], "tags": {}, "params": {}})
            self.save_state()

    def upload(self, event: Event) -> str:
        """Upload a bundle's files into the store of the run; return their address."""
        self.begin_run(event)
        bundle = Path(event["bundle"])
        return self.store_of_run().send(bundle, event["digest"], f"bundle-{event['version']}")

    def store_of_run(self) -> Upload:
        """Open the store of the run for sending."""
        return Upload(
            uri=self.uri,
            artifact_uri=self.client.get_run(self.state["run_id"]).info.artifact_uri,
            sent=self.state.setdefault("sent", {}),
            save=self.save_state,
            deadline=self.deadline,
        )

    def companions(self, event: Event) -> None:
        """Upload what lies beside a bundle that has its files in the store."""
        model, version, digest = event["model"], event["version"], event["digest"]
        there = registered(self.client, model, **{VERSION_TAG: version, DIGEST_TAG: digest})
        if not self.uploads or not there:
            return
        self.begin_run(event)
        bundles, run_id = Path(event["bundles"]), self.state["run_id"]
        tag = send_companions(self.store_of_run(), bundles, version, digest, run_id)
        for one in there if tag else ():
            self.client.set_model_version_tag(model, str(one.version), COMPANIONS_TAG, tag)

    def alias(self, event: Event) -> None:
        model, alias, version = event["model"], event["alias"], event["version"]
        if version is None:
            with passing(GONE):
                self.client.delete_registered_model_alias(model, alias)
            return
        there = registered(self.client, model, **{VERSION_TAG: version})
        if not there:
            self.refuse([event], f"bundle {version} is not in the registry")
            return
        number = str(there[0].version)
        self.client.set_registered_model_alias(model, alias, number)
        self.outbox.note_alias(self.uri, model, alias, number)
        when = store_name(f"{alias} {event['when']}")
        self.client.set_model_version_tag(model, number, when, event["action"])
        # A store that keeps what it should not costs room; no event waits for that.
        with suppress(Exception):
            remove_superseded(self.client, self.uri, model, self.config.keep_bundles)

    def end(self, event: Event) -> None:
        if self.state["run_id"] is not None:
            self.client.set_terminated(self.state["run_id"], event["status"], event["time"])


def grouped(lines: list[tuple[int, Event]]) -> Iterator[tuple[int, list[Event]]]:
    """Join neighbouring metric events into one request; others go alone."""
    group: list[Event] = []
    last = 0
    for offset, event in lines:
        if group and not (group[0]["event"] == event.get("event") == "metrics"):
            yield last, group
            group = []
        group.append({"event": "", **event})
        last = offset
    if group:
        yield last, group


def send_outbox(outbox: Outbox, config: TrackingConfig) -> SyncResult:
    """Send in this process; MLflow stays imported afterwards."""
    deadline = time.monotonic() + config.sync_seconds
    uri = store_uri(config, outbox)
    if not outbox.waiting():
        return SyncResult()
    with locked(outbox.path / "lock", wait=False) as alone:
        if not alone:
            return SyncResult(waiting=outbox.num_waiting(), problem="another process is sending")
        if is_server(uri) and not answers(uri, config.request_seconds):
            return SyncResult(waiting=outbox.num_waiting(), problem=f"no answer from {uri}")
        sender, problem = None, None
        try:
            sender = Sender(outbox, config, deadline)
            for path in outbox.waiting():
                send_whole(sender, path)
        except OutOfTime as late:
            done = f" ({late})" if str(late) else ""
            problem = f"not done in {config.sync_seconds:g} s{done}; {LONGER}"
        except Exception as error:
            # Whatever a server, a database or a network can raise: the lines wait.
            problem = f"{type(error).__name__}: {error}"
        return SyncResult(
            sent=sender.num_sent if sender else 0,
            waiting=outbox.num_waiting(),
            refused=sender.num_refused if sender else 0,
            problem=problem,
        )


def send_whole(sender: Sender, path: Path) -> None:
    """Send a file; from its start where the store has lost the run that was begun there."""
    from mlflow.exceptions import MlflowException

    try:
        sender.send_file(path)
    except MlflowException as error:
        if error.error_code != GONE or not path.with_suffix(".state.json").exists():
            raise
        path.with_suffix(".state.json").unlink()
        sender.send_file(path)


def main() -> None:
    """Send the outbox named by the arguments; the last line is the result as JSON."""
    outbox, config = Outbox(Path(sys.argv[1])), TrackingConfig(**json.loads(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(asdict(send_outbox(outbox, config)))}\n")


if __name__ == "__main__":
    main()
