"""Send an outbox to an MLflow store, and read its model registry.

It alone imports MLflow. ``pipelines.tracking.outbox`` sends in a process of its own with a time
limit, ``python -m pipelines.tracking.store REQUEST``; the last line of its output is the result as
JSON. Sending is idempotent: a run is found by its tag, a bundle by its digest, and equal points of
a metric are one. MLflow gets numbers, tags and pointers; files go to tracking.bundles.
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
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipelines.config.operation import TrackingConfig
from pipelines.engine.decisions import CHALLENGER, CHAMPION
from pipelines.tracking import copies
from pipelines.tracking.outbox import BUNDLES, POINTER, Outbox, read_lines
from recsys.data.durable import append_line, locked
from serving.bundle.manifest import VERSION_PATTERN, bundle_directory

RUN_TAG, VERSION_TAG, DIGEST_TAG = "recsys.run", "bundle", "bundle_digest"
GONE, INVALID = "RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"
LATER = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}
"""Errors of a store, or of a proxy before it, that may pass."""
NEVER = {INVALID, "BAD_REQUEST", "MALFORMED_REQUEST"}
MAX_NAME = 250
Event = dict[str, Any]


def store_name(name: str) -> str:
    """Spell a name as MLflow accepts it: ``ndcg@10`` becomes ``ndcg_at_10``."""
    plain = re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in plain.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_NAME] or "_"


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """Ignore some errors of the store."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


class RegisteredBundle(NamedTuple):
    """Registry's entry of a bundle; nothing of it is verified."""

    number: str
    version: str
    digest: str
    bundles: str
    pointer: str
    """Signed version and digest (`check_pointer`); empty if there is none."""


def open_client(uri: str, config: TrackingConfig) -> Any:
    """Open a store; a server that is gone costs one request, not the seconds of importing MLflow.

    Raises:
        UnreachableError: It gives no answer.
    """
    if uri.startswith("http"):
        health = f"{uri.rstrip('/')}/health"
        try:
            urllib.request.urlopen(health, timeout=config.request_seconds).close()
        except (OSError, ValueError):
            raise copies.UnreachableError(f"no answer from {uri}") from None
    os.environ |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(config.request_seconds),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(config.max_retries),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    }
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def look_up(uri: str, config: TrackingConfig, alias: str) -> RegisteredBundle:
    """Ask which bundle an alias names.

    Raises:
        UnreachableError: The registry gives no answer.
        ValueError: There is no such alias, it is none that this platform registered, or the store
            refuses the request.
    """
    model, found, database = config.model, None, Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:") and not database.exists():
        raise copies.UnreachableError(f"there is no registry at {uri}: {database} does not exist")
    try:
        client = open_client(uri, config)
        with passing(GONE, INVALID):
            found = client.get_model_version_by_alias(model, alias)
    except copies.UnreachableError:
        raise
    except Exception as error:
        # Any that a server, a database or a network can raise.
        words = f"{uri}: {first_line(error)}"
        code = getattr(error, "error_code", "INTERNAL_ERROR")
        raise (copies.UnreachableError if code in LATER else ValueError)(words) from error
    if found is None:
        raise ValueError(
            f"the model {model!r} in {uri} has no alias {alias!r}; name another --model, or "
            "promote a bundle where it was made"
        )
    named = (VERSION_TAG, DIGEST_TAG, BUNDLES, POINTER)
    version, digest, bundles, pointer = (found.tags.get(one, "") for one in named)
    if not re.fullmatch(VERSION_PATTERN, version) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(
            f"version {found.version} of the model {model!r} in {uri} has the tags "
            f"{VERSION_TAG}={version!r} and {DIGEST_TAG}={digest!r}; a bundle that recsys "
            "registered has its version and the sha256 of its manifest there. Nothing of it is "
            "read: point the alias at a version that recsys registered"
        )
    return RegisteredBundle(str(found.version), version, digest, bundles, pointer)


class Sender:
    """Sends the runs of an outbox to a store."""

    def __init__(self, uri: str, config: TrackingConfig, outbox: Outbox) -> None:
        self.client = open_client(uri, config)
        self.uri, self.config, self.outbox = uri, config, outbox

    @cached_property
    def experiment(self) -> str:
        """Id of the experiment, which is made if there is none."""
        name = self.config.experiment
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server chooses the place itself.
        is_server = self.uri.startswith("http")
        place = (self.outbox.path.parent / "artifacts").absolute().as_uri()
        return str(self.client.create_experiment(name, None if is_server else place))

    def registered(self, model: str, version: str, digest: str | None = None) -> str | None:
        """Return the newest number of a bundle in the registry; None without one."""
        mark = '"' if "'" in model else "'"
        found = self.client.search_model_versions(f"name = {mark}{model}{mark}")
        named = {VERSION_TAG: version, **({} if digest is None else {DIGEST_TAG: digest})}
        numbers = [int(one.version) for one in found if named.items() <= one.tags.items()]
        return str(max(numbers)) if numbers else None

    def send_all(self) -> dict[str, Any]:
        """Send every finished run, oldest first; a fault that may pass leaves the rest for later.

        A run that the store will never accept is set aside, with the reason as its last line.
        """
        num_sent, num_refused, problem = 0, 0, None
        for path in self.outbox.waiting():
            try:
                self.send(path.stem, read_lines(path))
            except Exception as error:
                # Any that a server, a database or a network can raise.
                problem = first_line(error)
                if not is_final(error):
                    break
                append_line(path, json.dumps({"event": "refused", "reason": problem}))
                path.rename(path.with_suffix(".refused"))
                num_refused += 1
            else:
                path.unlink()
                num_sent += 1
        waiting = len(self.outbox.waiting())
        return {"sent": num_sent, "waiting": waiting, "refused": num_refused, "problem": problem}

    def send(self, name: str, events: list[Event]) -> None:
        """Send the events of one run: its numbers first, then what it enters into the registry."""
        run_id = self.send_run(name, events) if events[0]["event"] == "start" else None
        for event in events:
            if event["event"] == "register":
                self.register(event, run_id)
            elif event["event"] == "alias" and event["version"]:
                self.move_alias(event)

    def send_run(self, run_name: str, events: list[Event]) -> str:
        """Find the run, or create it; log its parameters, tags and metrics, and end it."""
        from mlflow.entities import Metric, Param, RunTag

        # One that an earlier version's kill left open has no end.
        start, status = events[0], events[-1].get("status", "KILLED")
        condition = f"tags.`{RUN_TAG}` = '{run_name}'"
        runs = self.client.search_runs([self.experiment], condition, max_results=1)
        run = next(iter(runs), None) or self.client.create_run(
            self.experiment, start["time"], {RUN_TAG: run_name}, start["stage"]
        )
        texts, metrics = dict(start["tags"]), list[Any]()
        for event in events:
            if event["event"] == "tags":
                texts |= event["values"]
            for name, value in event["values"].items() if event["event"] == "metrics" else ():
                point = Metric(store_name(name), float(value), event["time"], event["step"])
                metrics.append(point)
        params = [Param(store_name(key), value) for key, value in start["params"].items()]
        tags = [RunTag(store_name(key), str(value)) for key, value in texts.items()]
        run_id = str(run.info.run_id)
        # MLflow cuts long texts, and sends many metrics in parts.
        self.client.log_batch(run_id, metrics, params, tags)
        self.client.set_terminated(run_id, status, events[-1]["time"])
        return run_id

    def register(self, event: Event, run_id: str | None) -> None:
        """Copy a bundle to where other machines fetch it, then enter a pointer to it."""
        model, version, digest = event["model"], event["version"], event["digest"]
        bundles, place = event["tags"][BUNDLES], self.config.bundles
        if place is not None:
            place = place if urlsplit(place).scheme else str(Path(place).absolute())
            copies.send(Path(bundles), version, place)
        tags = {
            **{store_name(name): value for name, value in event["tags"].items()},
            BUNDLES: place or bundles,
            VERSION_TAG: version,
            DIGEST_TAG: digest,
        }
        number = self.registered(model, version, digest)
        if number is not None:
            for name, value in tags.items():
                self.client.set_model_version_tag(model, number, name, value)
            return
        with passing("RESOURCE_ALREADY_EXISTS"):
            self.client.create_registered_model(model)
        folder = f"{tags[BUNDLES].rstrip('/')}/{bundle_directory(Path(), version).name}"
        # A server refuses paths outside its own artefacts.
        source = folder if urlsplit(folder).scheme else f"bundle://{folder}"
        self.client.create_model_version(
            model, source=source, run_id=run_id, tags=tags, await_creation_for=0
        )

    def move_alias(self, event: Event) -> None:
        """Point an alias at a bundle; a challenger that becomes champion is one no more."""
        model, alias, version = event["model"], event["alias"], event["version"]
        number = self.registered(model, version)
        if number is None:
            raise ValueError(f"bundle {version} is not in the registry")
        self.client.set_registered_model_alias(model, alias, number)
        self.outbox.note_alias(self.uri, model, alias, number)
        with passing(GONE, INVALID):
            waits = self.client.get_model_version_by_alias(model, CHALLENGER)
            if alias == CHAMPION and str(waits.version) == number:
                self.client.delete_registered_model_alias(model, CHALLENGER)


def is_final(error: Exception) -> bool:
    """True if a store will never accept what it refused."""
    code = getattr(error, "error_code", None)
    may_pass = isinstance(error, (OSError, copies.UnreachableError))
    return code in NEVER or (isinstance(error, (LookupError, ValueError)) and not may_pass)


def first_line(error: Exception) -> str:
    """Format an error's kind and the first line of its text."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def send_outbox(request: dict[str, Any]) -> dict[str, Any]:
    """Send an outbox, unless another process does; ``problem`` is the reason why some wait."""
    outbox = Outbox(Path(request["outbox"]))
    with locked(outbox.path / "lock", wait=False) as alone:
        try:
            if not alone:
                raise copies.UnreachableError("another process is sending")
            config = TrackingConfig(**request["config"])
            return Sender(request["uri"], config, outbox).send_all()
        except copies.UnreachableError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{request['uri']}: {first_line(error)}"
        return {"waiting": len(outbox.waiting()), "problem": problem}


def main() -> None:
    """Answer the request in the arguments."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"\n{json.dumps(send_outbox(json.loads(sys.argv[1])))}\n")


if __name__ == "__main__":
    main()
