"""Send an outbox to an MLflow store and read its model registry, in a process of its own.

``pipelines.tracking.tracking`` starts it as ``python -m pipelines.tracking.store REQUEST``; the
last line of its output is the reply as JSON: ``found``, ``refused`` or ``unreachable``. It alone
imports MLflow. Sending is idempotent: a run is found by its tag, a bundle by its digest, and equal
points of a metric are one. MLflow gets numbers, tags and pointers; files go to tracking.bundles.
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
NO_SUCH = (GONE, "INVALID_PARAMETER_VALUE")
"""Errors for an alias or a model that does not exist, and for a name that no alias can have."""
LATER = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}
"""Errors of a store, or of a proxy before it, that may pass."""
NEVER = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST"}
# The most that MLflow takes.
MAX_METRICS, MAX_PARAMS = 1000, 100
MAX_PARAM_CHARACTERS, MAX_TAG_CHARACTERS = 6000, 5000
Event = dict[str, Any]


def mlflow_client(uri: str, config: TrackingConfig) -> Any:
    """Import MLflow, quiet and bounded, and return its client; changes the environment."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(config.request_seconds)
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = str(config.max_retries)
    os.environ["MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"] = "1"
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def answers(uri: str, seconds: float) -> bool:
    """Check that a server is there, before the seconds that importing MLflow takes."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=seconds) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


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
    """A tracking store with its model registry."""

    def __init__(self, uri: str, config: TrackingConfig) -> None:
        self.uri, self.config = uri, config
        self.is_server = uri.startswith("http")
        self.client = mlflow_client(uri, config)

    def registered(self, model: str, **tags: str) -> list[Any]:
        """List the versions of a model that have tags, newest first."""
        wanted = {"name": model, **{f"tags.`{name}`": value for name, value in tags.items()}}
        marks = {value: '"' if "'" in value else "'" for value in wanted.values()}
        conditions = [f"{key} = {marks[one]}{one}{marks[one]}" for key, one in wanted.items()]
        found = self.client.search_model_versions(" and ".join(conditions))
        return sorted(found, key=lambda one: -int(one.version))

    def look_up(self, name: str, served_digest: str | None) -> dict[str, Any]:
        """Find the bundle of an alias or a version, and whether the served one is registered."""
        model, found = self.config.model, None
        with passing(*NO_SUCH):
            found = self.client.get_model_version_by_alias(model, name)
        if found is None:
            found = next(iter(self.registered(model, **{VERSION_TAG: name})), None)
        if found is None:
            known = dict.fromkeys(one.tags.get(VERSION_TAG, "") for one in self.registered(model))
            listed = ", ".join([*filter(None, known)][:20]) or "none"
            raise ValueError(
                f"{name!r} is neither an alias nor a bundle of the model {model!r} in {self.uri}; "
                f"there are: {listed}. Name one, or another --model"
            )
        is_known = bool(self.registered(model, **{DIGEST_TAG: served_digest or "none"}))
        return {**self._bundle(found), "served_is_registered": is_known}

    def _bundle(self, found: Any) -> dict[str, str]:
        """Read which bundle a version of the model is.

        Raises:
            ValueError: It is none that this platform registered.
        """
        version, digest = found.tags.get(VERSION_TAG, ""), found.tags.get(DIGEST_TAG, "")
        if not re.fullmatch(VERSION_PATTERN, version) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(
                f"version {found.version} of the model {self.config.model!r} in {self.uri} has the "
                f"tags {VERSION_TAG}={version!r} and {DIGEST_TAG}={digest!r}; a bundle that recsys "
                "registered has its version and the sha256 of its manifest there. Nothing of it "
                "is read: point the alias at a version that recsys registered"
            )
        where = {name: found.tags.get(name, "") for name in (BUNDLES, POINTER)}
        return {"number": str(found.version), "version": version, "digest": digest, **where}


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
        place = (self.outbox.path.parent / "artifacts").absolute().as_uri()
        return str(self.client.create_experiment(name, None if self.store.is_server else place))

    def send_file(self, path: Path) -> None:
        """Send a run, and remove its file."""
        self.path, self.run_id = path, None
        points: list[Event] = []
        for event in read_lines(path):
            if event.get("event") == "metrics":
                points.append(event)
            else:
                self.send_metrics(points)
                self.send(event)
                points = []
        path.unlink()

    def send(self, event: Event) -> None:
        """Send one event; one that the store will never accept is kept in refused.jsonl."""
        from mlflow.exceptions import MlflowException

        verbs = (self.start, self.tags, self.register, self.alias, self.end)
        try:
            # An outbox of an earlier version has other kinds, of files that it sent.
            for verb in verbs:
                if verb.__name__ == event["event"]:
                    verb(event)
        except copies.UnreachableError:
            raise
        except (KeyError, ValueError) as error:
            self.refuse(event, str(error))
        except MlflowException as error:
            if error.error_code not in NEVER:
                raise
            self.refuse(event, str(error))

    def refuse(self, event: Event, reason: str) -> None:
        """Keep an event that the store will never accept, with the reason."""
        self.num_refused += 1
        self.outbox.refuse(self.path.stem, event, reason)

    def start(self, event: Event) -> None:
        """Find the run, or create it; log its tags and parameters."""
        from mlflow.entities import Param

        condition = f"tags.`{RUN_TAG}` = '{self.path.stem}'"
        runs = self.client.search_runs([self.experiment], condition, max_results=1)
        run = (
            runs[0]
            if runs
            else self.client.create_run(
                self.experiment, event["time"], {RUN_TAG: self.path.stem}, event["stage"]
            )
        )
        self.run_id = run.info.run_id
        self.tags({"values": event["tags"]})
        params = {store_name(name): value for name, value in event["params"].items()}
        found = [Param(name, value[:MAX_PARAM_CHARACTERS]) for name, value in params.items()]
        self.log_batches(MAX_PARAMS, params=found)

    def send_metrics(self, events: list[Event]) -> None:
        """Send points of metrics, which the store takes in any number."""
        from mlflow.entities import Metric

        points = [
            Metric(store_name(name), float(value), event["time"], event["step"])
            for event in events
            for name, value in event["values"].items()
        ]
        self.log_batches(MAX_METRICS, metrics=points)

    def tags(self, event: Event) -> None:
        from mlflow.entities import RunTag

        texts = {store_name(name): str(value) for name, value in event["values"].items()}
        tags = [RunTag(name, text[:MAX_TAG_CHARACTERS]) for name, text in texts.items()]
        self.log_batches(MAX_PARAMS, tags=tags)

    def log_batches(self, size: int, **values: list[Any]) -> None:
        """Send values of one kind, at most ``size`` a request."""
        for kind, found in values.items():
            for begin in range(0, len(found), size):
                self.client.log_batch(self.run_id, **{kind: found[begin : begin + size]})

    def register(self, event: Event) -> None:
        """Copy a bundle to where other machines fetch it, then enter a pointer to it."""
        model, version, digest = event["model"], event["version"], event["digest"]
        bundles, place = Path(event["tags"][BUNDLES]), self.store.config.bundles
        if place is not None and not urlsplit(place).scheme:
            place = str(Path(place).absolute())
        tags = {
            **{store_name(name): value for name, value in event["tags"].items()},
            **({} if place is None else {BUNDLES: place}),
            VERSION_TAG: version,
            DIGEST_TAG: digest,
        }
        if place is not None:
            # An outbox of an earlier version has no decision.
            line = event.get("decision")
            digest_of_line = json.loads(event["tags"].get(POINTER, "{}")).get("decision")
            more = {decision_file(digest_of_line): line.encode()} if line else {}
            copies.send(bundles, version, place, more)
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


def send_outbox(store: Store, outbox: Outbox) -> dict[str, Any]:
    """Send the finished runs of an outbox, oldest first; a fault leaves the rest for later."""
    with locked(outbox.path / "lock", wait=False) as alone:
        if not alone:
            raise copies.UnreachableError("another process is sending")
        sender, num_sent, problem = Sender(store, outbox), 0, None
        try:
            for path in outbox.finished():
                sender.send_file(path)
                num_sent += 1
        except Exception as error:
            # Whatever a server, a database or a network can raise: the runs wait.
            problem = first_line(error)
    return {
        "sent": num_sent,
        "waiting": len(outbox.finished()),
        "refused": sender.num_refused,
        "problem": problem,
    }


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request."""
    uri, config = request["uri"], TrackingConfig(**request["config"])
    sends, database = request["what"] == "send", Path(uri.removeprefix("sqlite:///"))
    if not sends and uri.startswith("sqlite:") and not database.exists():
        return {"unreachable": f"there is no registry at {uri}: {database} does not exist"}
    if uri.startswith("http") and not answers(uri, config.request_seconds):
        return {"unreachable": f"no answer from {uri}"}
    from mlflow.exceptions import MlflowException

    try:
        store = Store(uri, config)
        if sends:
            return {"found": send_outbox(store, Outbox(Path(request["outbox"])))}
        return {"found": store.look_up(request["name"], request["digest"])}
    except MlflowException as error:
        kind = "unreachable" if error.error_code in LATER else "refused"
        return {kind: f"{uri}: {first_line(error)}"}
    except copies.UnreachableError as error:
        return {"unreachable": str(error)}
    except ValueError as error:
        return {"refused": str(error)}
    except Exception as error:
        # Whatever a database or a network can raise.
        return {"unreachable": f"{uri}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    """Format an error's kind and the first line of its text."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def main() -> None:
    """Answer the request in the arguments; the last line is the reply as JSON."""
    reply = reply_to(json.loads(sys.argv[1]))
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{json.dumps(reply)}\n")


if __name__ == "__main__":
    main()
