"""A contract over all commands: help with an example, a run as first argument, faults in words."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from docs.generators.command_line import commands
from pipelines.cli.main import COMMANDS, GROUPS, app
from pipelines.cli.options import config_sources

FOUND = dict(commands(get_command(app)))
MAX_NAMES = 30


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, " ".join(result.output.split())


def test_every_command_has_help_with_an_example_and_the_top_has_few_names():
    for name in FOUND:
        code, text = told(*name.split()[1:], "--help")
        assert code == 0
        assert name in text.split("Example", 1)[1], name
    assert sum(len(panel.split()) for panel in COMMANDS.values()) + len(GROUPS) <= MAX_NAMES


def test_every_command_refuses_a_place_that_is_not_there(tmp_path):
    for name, command in FOUND.items():
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        if not arguments or name in ("recsys demo", "recsys keys add"):
            continue
        code, text = told(*name.split()[1:], *[str(tmp_path / "nowhere")] * len(arguments))
        assert code == 2, name
        assert "error" in text.lower(), name
        assert "Traceback" not in text, name


@pytest.mark.parametrize("name", ["gc", "release rollback", "release append", "registry send"])
def test_a_command_that_changes_something_needs_a_run(name):
    code, text = told(*name.split())
    assert code == 2
    assert "Missing argument 'RUN'" in text


def test_a_folder_is_read_with_the_configuration_of_its_last_run(tmp_path):
    assert config_sources(tmp_path).path == tmp_path / "config.toml"
    assert config_sources(tmp_path, "auto").path is None
    assert config_sources(tmp_path, "auto").config().workspace == tmp_path
    with pytest.raises(ValueError, match=r"name a run: shop\.toml"):
        config_sources(None)


def test_a_run_may_still_be_named_by_an_option(tmp_path):
    runs = [told("run", *option, str(tmp_path / "no.toml")) for option in ([], ["--config"])]
    assert runs[0] == runs[1]
    assert runs[0][0] == 2


def test_help_waits_neither_for_torch_nor_for_polars():
    code = "import sys, pipelines.cli.main; sys.exit(bool({'torch', 'polars'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_plan_counts_the_data_and_says_what_fits(tmp_path):
    lines = [f"u{user},i{(7 * user + n) % 40},17{n:08}" for user in range(60) for n in range(9)]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id,event_time", *lines]))
    run = tmp_path / "shop.toml"
    on = "[auto]\nenabled = false\n[sequence_training]\nenabled = true\n"
    run.write_text(on + '[data]\nevents = "events.csv"\n')
    given = (str(run), "--set", f"workspace={tmp_path / 'run'}", "--json")
    code, text = told("plan", *given)
    assert code == 0, text
    found = json.loads(text[text.index("{") :])
    assert found["shop"] | {"rows": 0} == {"items": 40, "users": 60, "events": 540, "rows": 0}
    assert [one["on"] for one in found["trainings"][::2]] == ["1 H100", "2 H100"]
    code, text = told("plan", *given[:3], "--shop", "items=1e10,users=1e9,events=1e10")
    assert code == 3
    assert "> 76 GiB" in text
