"""Run modules in forks of a process that has imported MLflow, which takes seconds each time.

Reads one JSON line a request (module, arguments, environment, folder, files of its output), prints
the fork's number, and its exit code once it is done; one request after the other.
"""

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

MODULES = ["pipelines.tracking.store"]


def warm() -> None:
    """Import what the modules will, by opening a store."""
    child = importlib.import_module("pipelines.tracking.store")
    settings = importlib.import_module("pipelines.config.operation")
    with tempfile.TemporaryDirectory() as folder:
        store = child.Store(f"sqlite:///{folder}/mlflow.db", settings.TrackingConfig())
        store.client.search_experiments()


def work(request: dict) -> int:
    for place, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = [request["module"], *request["arguments"]]
    sys.path[:0] = ["", *filter(None, request["environment"].get("PYTHONPATH", "").split(":"))]
    try:
        sys.modules[request["module"]].main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    warm()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = work(request)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        say(child)
        _, status = os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    serve()
