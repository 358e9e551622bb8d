import json
import os
import signal

import pytest

from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import Workspace
from tests.pipelines.engine.conftest import in_a_fork, kill


def test_workspace_of_the_version_before_is_recognised_and_left_as_it_is(tmp_path):
    old = {"stage": "fit_baselines", "inputs": {}, "config": {}, "versions": {}, "rows": {}}
    folder = tmp_path / "fit_baselines"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({**old, "files": {}}))
    (tmp_path / "somebody's").mkdir()
    (tmp_path / "somebody's" / "manifest.json").write_text('{"name": "a web page"}')
    partial = tmp_path / ".partial-refit"
    partial.mkdir()
    told = (
        f"{tmp_path} is a workspace of format 1 .its fit_baselines says so.; this version of "
        "recsys reads and writes format 2. Choose a new folder with --set workspace=FOLDER"
    )
    with pytest.raises(ValueError, match=told), Workspace(tmp_path).lock():
        pass
    with pytest.raises(ValueError, match=told):
        Workspace(tmp_path).manifest("fit_baselines")
    assert partial.exists()


def test_second_run_is_told_who_holds_the_workspace(tmp_path):
    workspace = Workspace(tmp_path)
    with workspace.lock(), pytest.raises(WorkspaceBusyError) as caught, workspace.lock():
        pass
    assert f"is in use by process {os.getpid()}, started" in str(caught.value)
    assert "--set workspace=FOLDER" in str(caught.value)


def test_lock_of_a_killed_run_is_free_and_what_it_left_is_swept(tmp_path):
    def die() -> None:
        with Workspace(tmp_path).lock():
            kill()

    assert in_a_fork(die) == -signal.SIGKILL
    (tmp_path / ".partial-train_two_tower").mkdir()
    (tmp_path / ".partial-train_two_tower/half.npy").write_bytes(b"0")
    with Workspace(tmp_path).lock() as swept:
        assert swept == [".partial-train_two_tower"]
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_unwritable_workspace_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to the workspace .*--set workspace"):
        Workspace(tmp_path / "file" / "inside").check_writable()


def test_ledger_survives_a_torn_line(tmp_path):
    workspace = Workspace(tmp_path)
    assert workspace.ledger() == []
    workspace.append_to_ledger({"split": "test", "run": 1})
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"split": "te')
    workspace.append_to_ledger({"split": "test", "run": 2})
    assert [entry.get("run", "torn" in entry) for entry in workspace.ledger()] == [1, True, 2]


def test_only_the_matching_training_state_is_kept(tmp_path):
    workspace = Workspace(tmp_path)
    for making in ("a" * 64, "b" * 64):
        workspace.checkpoints("train_two_tower", making).mkdir(parents=True)
    workspace.keep_only_checkpoints("train_two_tower", "a" * 64)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        "train_two_tower-" + "a" * 16
    ]
    workspace.keep_only_checkpoints("train_two_tower", None)
    assert list((tmp_path / "checkpoints").iterdir()) == []
