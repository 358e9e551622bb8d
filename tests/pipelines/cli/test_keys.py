from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli.main import app
from serving.security.access import Access, Caller
from serving.settings import Settings

Keys = Callable[..., Result]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    def run(*arguments: object) -> Result:
        given = ["keys", *(str(one) for one in arguments), "--file", str(tmp_path / "keys.toml")]
        return CliRunner().invoke(app, given)

    return run


def secret_of(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return next(line for line in result.output.splitlines() if line.startswith("rk_"))


def test_a_key_is_printed_once_and_lets_its_holder_in_until_it_is_removed(keys, tmp_path):
    secret = secret_of(keys("add", "shop", "--rate", 100))
    other = secret_of(keys("add", "support", "--scope", "read", "--scope", "users"))
    file = tmp_path / "keys.toml"
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    access = Access(Settings(keys=file))

    def passes(key: str) -> bool:
        headers = [(b"authorization", f"Bearer {key}".encode())]
        access.poll()
        return isinstance(access.authorize(headers, "/v1/recommend", "POST", None), Caller)

    assert passes(secret)
    assert passes(other)
    file.write_text("# the shop's\n" + file.read_text())
    assert keys("add", "other").exit_code == 0
    assert file.read_text().startswith("# the shop's\n")
    assert keys("remove", "shop").exit_code == 0
    assert not passes(secret)
    assert passes(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "shop"), "name 'shop' twice"),
        (("add", "b", "--scope", "root"), "scopes"),
        (("add", "b", "--rate", "0"), "greater than 0"),
        (("add", "a b"), "name: String should match"),
        (("remove", "b"), "has no key 'b'; it has shop"),
    ],
)
def test_a_faulty_command_leaves_the_file_as_it_is(keys, tmp_path, arguments, message):
    keys("add", "shop")
    before = (tmp_path / "keys.toml").read_text()
    result = keys(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert (tmp_path / "keys.toml").read_text() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "keys.toml"]
