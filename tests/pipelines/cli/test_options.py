"""A run is the first argument of every command; options of earlier versions still name it."""

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from docs.generators.command_line import commands
from pipelines.cli.main import COMMANDS, GROUPS, MOVED, app
from pipelines.cli.options import RunCommand, config_sources

FOUND = dict(commands(get_command(app)))
MAX_NAMES = 30


@pytest.mark.parametrize(
    ("name", "given", "present"),
    [
        ("run", ["-c", "a.toml", "-q"], ["a.toml", "-q"]),
        ("run", ["--config=a.toml", "-w", "b"], ["a.toml", "--set", 'workspace="b"']),
        ("run", ["a.toml", "-w", "b"], ["a.toml", "--set", 'workspace="b"']),
        ("run", ["--preset", "auto", "--workspace", "b"], ["b", "--preset", "auto"]),
        ("status", ["-w", "runs/a", "--json"], ["runs/a", "--json"]),
        ("score", ["--bundle", "b", "--config", "s"], ["b", "--serving-config", "s"]),
        ("release promote", ["v1", "-b", "bundles"], ["bundles", "v1"]),
        ("data forget", ["4711", "--workspace", "runs/a"], ["runs/a", "4711"]),
        ("config check", ["s.toml", "--bundle", "b"], ["s.toml", "--bundle", "b"]),
    ],
)
def test_earlier_options_become_the_first_argument(
    name: str, given: list[str], present: list[str]
) -> None:
    command = FOUND[f"recsys {name}"]
    assert isinstance(command, RunCommand)
    assert command.present_options(given) == present


@pytest.mark.parametrize("name", MOVED)
def test_names_of_earlier_versions_are_understood(name: str) -> None:
    further = {"tracking": ["send"], "events": ["export"], "users": ["forget"]}.get(name, [])
    assert CliRunner().invoke(app, [name, *further, "--help"]).exit_code == 0


def test_the_top_has_few_names() -> None:
    names = [one for panel in COMMANDS.values() for one in panel.split()]
    assert len(names) + len(GROUPS) <= MAX_NAMES


@pytest.mark.parametrize("name", ["gc", "release rollback", "release append", "registry send"])
def test_a_command_that_changes_something_needs_a_run(name: str) -> None:
    result = CliRunner().invoke(app, name.split())
    assert result.exit_code == 2
    assert "Missing argument 'RUN'" in " ".join(result.output.split())


def test_a_folder_is_read_with_the_configuration_of_its_last_run(tmp_path: Path) -> None:
    assert config_sources(tmp_path).path == tmp_path / "config.toml"
    assert config_sources(tmp_path, "auto").path is None
    assert config_sources(tmp_path, "auto").config().workspace == tmp_path
    with pytest.raises(ValueError, match=r"name a run: shop\.toml"):
        config_sources(None)
