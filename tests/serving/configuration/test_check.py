"""What `recsys config check` says, of a file alone and with a bundle."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from serving.recommend import Recommender
from serving.settings import ServingOptions


def check(file: Path, *arguments: object) -> tuple[int, str]:
    given = ["config", "check", str(file), *(str(one) for one in arguments)]
    result = CliRunner().invoke(app, given)
    return result.exit_code, result.output


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "serving.toml"
        path.write_text(text)
        return path

    return write


def test_a_source_that_is_not_built_in_needs_a_bundle_that_has_it(written, released):
    file = written("[surfaces.home]\nsources = {two_towers = 1}")
    code, said = check(file)
    assert code == 2
    fault = "surface 'home' has unknown source 'two_towers'; did you mean 'two_tower'?"
    assert f"{fault}; if it is a model of your own" in " ".join(said.split())
    with pytest.raises(ValueError, match=re.escape(f"serving.toml: {fault}")):
        Recommender.load(released / "current", ServingOptions(config=file))


def test_a_bundle_has_what_a_file_names_or_not(written, released):
    fitting = "[[rules]]\nname='gone'\nkind='hide'\nitems=['item-1']"
    code, said = check(written(fitting), "--bundle", released)
    assert (code, said.splitlines()[-1]) == (0, "bundle v1 has all that it names")
    code, said = check(
        written(
            f"""
            [surfaces.home]
            caps = {{brnd = 1}}
            [surfaces.own]
            kind = "cart"
            sources = {{ensemble = 1, popularity = 0.1}}
            filter = "item_id = 'nothing'"
            {fitting}
            [[rules]]
            name = "unknown"
            kind = "boost"
            items = ["item-1", "no-such-item"]
            where = "colour = 'red'"
            places = 2
            """
        ),
        "--bundle",
        released,
    )
    said = " ".join(said.split())
    assert code == 2
    assert "surface 'home' has a cap of brnd, which items of the bundle do not have" in said
    assert "surface 'own' has sources ensemble, and bundle v1 has" in said
    assert "the filter of surface 'own' holds for no item of bundle v1" in said
    assert "rule 'unknown' names items that bundle v1 does not have: no-such-item" in said
    assert "rule 'unknown': colour = 'red': character 1: items of bundle v1 have no" in said
