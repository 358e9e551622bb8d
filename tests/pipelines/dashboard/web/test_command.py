"""``recsys dashboard``: what it refuses, and what it serves."""

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app as command
from pipelines.dashboard.web import app as process


def ran(*words: str):
    return CliRunner().invoke(command, ["dashboard", *map(str, words)])


@pytest.fixture
def served(monkeypatch):
    """Note with what a dashboard would be served."""
    found = []
    monkeypatch.setattr(process, "serve", lambda *given: found.append(given))
    monkeypatch.delenv("RECSYS_DASHBOARD_KEY", raising=False)
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "nowhere"], "nowhere is not a folder"),
        (["--host", "0.0.0.0"], "give a key (--key-file), say --public, or listen on 127.0.0.1"),
        (["--key-file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_is_refused_in_words(served, words, said):
    result = ran(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert served == []


def test_the_key_comes_from_a_file_or_the_environment(served, tmp_path, monkeypatch):
    file = tmp_path / "key.txt"
    file.write_text("from the file\n")
    assert ran("--root", tmp_path, "--key-file", file, "--port", "8123").exit_code == 0
    monkeypatch.setenv("RECSYS_DASHBOARD_KEY", "from the environment")
    assert ran("--root", tmp_path, "--host", "0.0.0.0").exit_code == 0
    assert [(one[2].key, one[3]) for one in served] == [
        ("from the file", 8123),
        ("from the environment", 8100),
    ]
    file.write_text("two\nlines\n")
    assert "on one line" in " ".join(ran("--root", tmp_path, "--key-file", file).output.split())


def test_a_folder_without_runs_is_served(served, tmp_path):
    assert "http://127.0.0.1:8100/" in ran("--root", tmp_path).output
    assert len(served) == 1
