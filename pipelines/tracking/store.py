"""Send an outbox to an MLflow store and read its model registry, in a process of its own.

``pipelines.tracking.tracking`` starts it as ``python -m pipelines.tracking.store REQUEST``; the
last line of its output is the reply as JSON. It alone imports MLflow. Sending is idempotent: a run
is found by its tag, a bundle by its digest, and equal points of a metric are one. MLflow gets
numbers, tags and pointers; files go to tracking.bundles.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelines.config.operation import TrackingConfig
from pipelines.tracking.entries import BUNDLES, POINTER, decision_file
from pipelines.tracking.outbox import Outbox, read_lines, store_name
from recsys.data.durable import locked
from serving.bundle import copies
from serving.bundle.manifest import VERSION_PATTERN, bundle_directory

RUN_TAG, VERSION_TAG, DIGEST_TAG = "recsys.run", "bundle", "bundle_digest"
GONE = "RESOURCE_DOES_NOT_EXIST"
LATER = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}
"""Errors of a store, or of a proxy before it, that may pass."""
INVALID = "INVALID_PARAMETER_VALUE"
NEVER = {INVALID, "BAD_REQUEST", "MALFORMED_REQUEST"}
MAX_VALUES = {"metrics": 1000, "params": 100, "tags": 100}
"""The most that MLflow takes in a request."""
MAX_PARAM_CHARACTERS, MAX_TAG_CHARACTERS = 6000, 5000
Event = dict[str, Any]


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """Ignore some errors of the store."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


class Store:
    """A tracking store with its model registry; imports MLflow and changes the environment."""

    def __init__(self, uri: str, config: TrackingConfig) -> None:
        os.environ |= {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "GIT_PYTHON_REFRESH": "quiet",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(config.request_seconds),
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(config.max_retries),
            "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        }
        from mlflow.tracking import MlflowClient

        self.uri, self.config = uri, config
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def registered(self, model: str, **tags: str) -> list[Any]:
        """List the versions of a model that have tags, newest first."""
        wanted = {"name": model, **{f"tags.`{name}`": value for name, value in tags.items()}}
        marks = {value: '"' if "'" in value else "'" for value in wanted.values()}
        conditions = [f"{key} = {marks[one]}{one}{marks[one]}" for key, one in wanted.items()]
        found = self.client.search_model_versions(" and ".join(conditions))
        return sorted(found, key=lambda one: -int(one.version))

    def look_up(self, name: str, served_digest: str | None) -> dict[str, Any]:
        """Find the bundle of an alias or a version, and whether the served one is registered.

        Raises:
            ValueError: There is none, or it is none that this platform registered.
        """
        model, found = self.config.model, None
        # An alias or model that does not exist, or a name that no alias can have.
        with passing(GONE, INVALID):
            found = self.client.get_model_version_by_alias(model, name)
        found = found or next(iter(self.registered(model, **{VERSION_TAG: name})), None)
        if found is None:
            known = dict.fromkeys(one.tags.get(VERSION_TAG, "") for one in self.registered(model))
            listed = ", ".join([*filter(None, known)][:20]) or "none"
            raise ValueError(
                f"{name!r} is neither an alias nor a bundle of the model {model!r} in {self.uri}; "
                f"there are: {listed}. Name one, or another --model"
            )
        named = (VERSION_TAG, DIGEST_TAG, BUNDLES, POINTER)
        version, digest, bundles, pointer = (found.tags.get(one, "") for one in named)
        if not re.fullmatch(VERSION_PATTERN, version) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(
                f"version {found.version} of the model {model!r} in {self.uri} has the "
                f"tags {VERSION_TAG}={version!r} and {DIGEST_TAG}={digest!r}; a bundle that recsys "
                "registered has its version and the sha256 of its manifest there. Nothing of it "
                "is read: point the alias at a version that recsys registered"
            )
        return {
            "number": str(found.version),
            "version": version,
            "digest": digest,
            BUNDLES: bundles,
            POINTER: pointer,
            "served_is_registered": bool(
                self.registered(model, **{DIGEST_TAG: served_digest or "none"})
            ),
        }


class Sender:
    """Sends the finished runs of an outbox to a store."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self.store, self.client, self.outbox = store, store.client, outbox
        self.num_refused = 0
        self.path = outbox.path
        self.run_id: str | None = None

    @cached_property
    def experiment(self) -> str:
        """Id of the experiment, which is made if there is none."""
        name = self.store.config.experiment
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server chooses the place itself.
        is_server = self.store.uri.startswith("http")
        place = (self.outbox.path.parent / "artifacts").absolute().as_uri()
        return str(self.client.create_experiment(name, None if is_server else place))

    def send_all(self) -> dict[str, Any]:
        """Send every finished run, oldest first; a fault leaves the rest for later."""
        num_sent, problem = 0, None
        try:
            for path in self.outbox.finished():
                self.path, self.run_id = path, None
                for event in joined(read_lines(path)):
                    self.send(event)
                path.unlink()
                num_sent += 1
        except Exception as error:
            # Any that a server, a database or a network can raise: the runs wait.
            problem = first_line(error)
        return {
            "sent": num_sent,
            "waiting": len(self.outbox.finished()),
            "refused": self.num_refused,
            "problem": problem,
        }

    def send(self, event: Event) -> None:
        """Send one event; one that the store will never accept is kept in refused.jsonl."""
        from mlflow.exceptions import MlflowException

        verbs = (self.start, self.metrics, self.tags, self.register, self.alias, self.end)
        reason = None
        try:
            for verb in verbs:
                if verb.__name__ == event["event"]:
                    verb(event)
        except copies.UnreachableError:
            raise
        except (KeyError, ValueError) as error:
            reason = str(error)
        except MlflowException as error:
            if error.error_code not in NEVER:
                raise
            reason = str(error)
        if reason is not None:
            self.num_refused += 1
            self.outbox.refuse(self.path.stem, event, reason)

    def start(self, event: Event) -> None:
        """Find the run, or create it; log its tags and parameters."""
        from mlflow.entities import Param

        condition = f"tags.`{RUN_TAG}` = '{self.path.stem}'"
        runs = self.client.search_runs([self.experiment], condition, max_results=1)
        run = next(iter(runs), None) or self.client.create_run(
            self.experiment, event["time"], {RUN_TAG: self.path.stem}, event["stage"]
        )
        self.run_id = run.info.run_id
        self.tags({"values": event["tags"]})
        params = {store_name(name): value for name, value in event["params"].items()}
        self.log_batches(
            "params", [Param(name, value[:MAX_PARAM_CHARACTERS]) for name, value in params.items()]
        )

    def metrics(self, event: Event) -> None:
        from mlflow.entities import Metric

        points = [
            Metric(store_name(name), float(value), one["time"], one["step"])
            for one in event["points"]
            for name, value in one["values"].items()
        ]
        self.log_batches("metrics", points)

    def tags(self, event: Event) -> None:
        from mlflow.entities import RunTag

        texts = {store_name(name): str(value) for name, value in event["values"].items()}
        tags = [RunTag(name, text[:MAX_TAG_CHARACTERS]) for name, text in texts.items()]
        self.log_batches("tags", tags)

    def log_batches(self, kind: str, values: list[Any]) -> None:
        """Send values of one kind, at most as many a request as MLflow takes."""
        size = MAX_VALUES[kind]
        for begin in range(0, len(values), size):
            self.client.log_batch(self.run_id, **{kind: values[begin : begin + size]})

    def register(self, event: Event) -> None:
        """Copy a bundle to where other machines fetch it, then enter a pointer to it."""
        model, version, digest = event["model"], event["version"], event["digest"]
        bundles, place = event["tags"][BUNDLES], self.store.config.bundles
        if place is not None:
            place = place if urlsplit(place).scheme else str(Path(place).absolute())
            line = event.get("decision")
            decided = json.loads(event["tags"].get(POINTER, "{}")).get("decision")
            more = {decision_file(decided): line.encode()} if line else {}
            copies.send(Path(bundles), version, place, more)
        tags = {
            **{store_name(name): value for name, value in event["tags"].items()},
            BUNDLES: place or bundles,
            VERSION_TAG: version,
            DIGEST_TAG: digest,
        }
        there = self.store.registered(model, **{VERSION_TAG: version, DIGEST_TAG: digest})
        if there:
            for name, value in tags.items():
                self.client.set_model_version_tag(model, str(there[0].version), name, value)
            return
        with passing("RESOURCE_ALREADY_EXISTS"):
            self.client.create_registered_model(model)
        folder = f"{tags[BUNDLES].rstrip('/')}/{bundle_directory(Path(), version).name}"
        # A server refuses paths outside its own artefacts.
        source = folder if urlsplit(folder).scheme else f"bundle://{folder}"
        self.client.create_model_version(
            model, source=source, run_id=self.run_id, tags=tags, await_creation_for=0
        )

    def alias(self, event: Event) -> None:
        model, alias, version = event["model"], event["alias"], event["version"]
        if version is None:
            with passing(GONE):
                self.client.delete_registered_model_alias(model, alias)
            return
        there = self.store.registered(model, **{VERSION_TAG: version})
        if not there:
            raise ValueError(f"bundle {version} is not in the registry")
        number = str(there[0].version)
        self.client.set_registered_model_alias(model, alias, number)
        self.outbox.note_alias(self.store.uri, model, alias, number)
        when = store_name(f"{alias} {event['when']}")
        self.client.set_model_version_tag(model, number, when, event["action"])

    def end(self, event: Event) -> None:
        if self.run_id is not None:
            self.client.set_terminated(self.run_id, event["status"], event["time"])


def joined(events: list[Event]) -> Iterator[Event]:
    """Join metrics that follow each other, which the store takes in any number."""
    points: list[Event] = []
    for event in events:
        if event.get("event") == "metrics":
            points.append(event)
            continue
        if points:
            yield {"event": "metrics", "points": points}
        points = []
        yield event


def answers(uri: str, seconds: float) -> bool:
    """Check that a server is there, before the seconds that importing MLflow takes."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=seconds) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """Send an outbox or look a bundle up; ``unreachable`` or ``rejected`` gives the reason."""
    uri, config = request["uri"], TrackingConfig(**request["config"])
    database = Path(uri.removeprefix("sqlite:///"))
    if "name" in request and uri.startswith("sqlite:") and not database.exists():
        return {"unreachable": f"there is no registry at {uri}: {database} does not exist"}
    if uri.startswith("http") and not answers(uri, config.request_seconds):
        return {"unreachable": f"no answer from {uri}"}
    from mlflow.exceptions import MlflowException

    try:
        store = Store(uri, config)
        if "name" in request:
            return store.look_up(request["name"], request["digest"])
        outbox = Outbox(Path(request["outbox"]))
        with locked(outbox.path / "lock", wait=False) as alone:
            if not alone:
                return {"unreachable": "another process is sending"}
            return Sender(store, outbox).send_all()
    except MlflowException as error:
        kind = "unreachable" if error.error_code in LATER else "rejected"
        return {kind: f"{uri}: {first_line(error)}"}
    except ValueError as error:
        return {"rejected": str(error)}
    except Exception as error:
        # Any that a database or a network can raise.
        return {"unreachable": f"{uri}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    """Format an error's kind and the first line of its text."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def main() -> None:
    """Answer the request in the arguments; the last line is the reply as JSON."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{json.dumps(reply_to(json.loads(sys.argv[1])))}\n")


if __name__ == "__main__":
    main()
