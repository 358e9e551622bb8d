"""Every code block of the documentation is run, or read by what would read it."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.main import get_command

from pipelines.cli.main import app
from pipelines.presets.resolve import ConfigSources
from recsys.retrieval.export_onnx import export_bundle
from serving.bundle.catalogue import Catalogue
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.properties import Properties
from serving.bundle.users import Users
from serving.bundle.write import write_bundle
from serving.client import Client
from serving.configuration.file import check_configuration
from serving.security.keys import ClientKey
from tests.docs.pages import ROOT, Block, blocks, commands
from tests.serving.server.running import wait_for
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts
from tests.serving.web.try_it_page import serving

BLOCKS = list(blocks())
SHELL = ("", "sh", "bash")
# Other programs, whose options are theirs; a block of these is not run.
PROGRAMS = {
    "airflow", "docker", "export", "git", "kubectl", "mlflow", "openssl", "pip", "python3.12",
    "rsync", "sha256sum", "ssh", "torchrun",
}  # fmt: skip
SIZE = SyntheticSize(num_items=240, num_users=200)


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def is_drawing(block: Block) -> bool:
    """README's picture of the data flow is drawn in letters."""
    return block.text.startswith("raw events")


def test_no_block_is_left_out() -> None:
    known = {*SHELL, "toml", "python", "json", "math", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []
    assert len(BLOCKS) > 60


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Find the command that words name, and the words behind its name."""
    found, rest = get_command(app), words[1:]
    while hasattr(found, "commands"):
        assert rest, f"{' '.join(words)} names no command"
        if rest[0] in {name for one in found.params for name in one.opts}:
            return found, rest
        assert rest[0] in found.commands, f"recsys has no command {rest[0]!r}"
        found, rest = found.commands[rest[0]], rest[1:]
    return found, rest


def check_recsys(words: list[str]) -> None:
    """Read a line as the command line would: its options and arguments, and what --set sets."""
    command, rest = command_of(words)
    values, *_ = command.make_parser(command.context_class(command)).parse_args(list(rest))
    for parameter in command.params:
        given = values.get(parameter.name)
        assert given is not None or not parameter.required, f"{words} lacks {parameter.name}"
        choices = getattr(parameter.type_descriptor.annotation, "__args__", None)
        if isinstance(given, str) and choices and all(isinstance(one, str) for one in choices):
            assert given in choices, words
    if assignments := values.get("assignments"):
        ConfigSources(preset=values.get("preset") or "shop", assignments=assignments).config()


def check_module(words: list[str]) -> None:
    """``python -m module``: there is such a module."""
    assert words[1] == "-m", words
    if words[2] not in ("pip", "pytest"):
        assert importlib.util.find_spec(words[2]) is not None, words


@pytest.mark.parametrize("block", of(*SHELL), ids=str)
def test_commands_are_those_that_there_are(block: Block) -> None:
    if is_drawing(block):
        return
    verbs = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(block):
        while re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        name = words[0].rpartition("/")[2]
        if name == "recsys":
            check_recsys(words)
        elif name == "make":
            assert {word for word in words[1:] if "=" not in word} <= verbs
        elif name == "python":
            check_module(words)
        else:
            assert name in PROGRAMS | {"curl", "sigstore"}, f"{block}: {name} is not known"


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("recsys rum", "AssertionError", "recsys has no command 'rum'"),
        ("recsys run --budgets 1m", "NoSuchOption", "No such option: --budgets"),
        ("recsys data fetch", "AssertionError", "lacks name"),
        ("recsys run --set blend.no=1", "ValueError", "unknown key 'blend.no'"),
    ],
)
def test_a_command_that_there_is_not_is_found(line: str, kind: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as raised:
        check_recsys(line.split())
    # The parser's classes are not public.
    assert raised.type.__name__ == kind


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_configurations_are_read(block: Block, tmp_path: Path) -> None:
    table = tomllib.loads(block.text)
    if set(table) <= {"surfaces", "rules", "experiments", "wishes"}:
        check_configuration(table)
    elif "keys" in table:
        for key in table["keys"]:
            ClientKey.model_validate(key | {"sha256": "0" * 64})
    else:
        path = tmp_path / "shop.toml"
        # A block that shows a part of a file stands above a preset.
        preset = "" if "preset" in table else 'preset = "shop"\n'
        path.write_text(preset + block.text)
        ConfigSources(path=path).config()


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_replies_are_json_with_gaps(block: Block) -> None:
    json.loads(re.sub(r",\s*\.\.\.(?=[\s\]}])", "", block.text))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with ids as those of the pages, where the demo puts its own."""
    folder = tmp_path_factory.mktemp("pages")
    made = folder / "runs" / "movielens-100k" / "bundles"
    made.mkdir(parents=True)
    parts = synthetic_parts(tmp_path_factory.mktemp("parts"), SIZE)
    numbers = [str(row) for row in range(1, SIZE.num_items + 1)]
    catalogue = Catalogue.from_lists(
        item_ids=numbers,
        display_texts=["Star Wars", *(f"Title {number}" for number in numbers[1:])],
        category_names=["Action", "Comedy", "Horror"],
        category_values=parts.catalogue.category_values,
        category_offsets=parts.catalogue.category_offsets,
    )
    users = Users.from_lists(
        user_ids=[str(row) for row in range(1, SIZE.num_users + 1)],
        features=parts.users.features,
        item_rows=parts.users.item_rows,
        offsets=parts.users.offsets,
        times=parts.users.times,
    )
    years = {"release_year": [1950.0 + row % 60 for row in range(SIZE.num_items)]}
    properties = Properties.of_values({"release_year": "number"}, years)
    parts = replace(parts, catalogue=catalogue, users=users, properties=properties)
    write_bundle(made, parts, version="v1")
    publish(made, "v1")
    return made


@pytest.fixture(scope="module")
def address(bundles: Path) -> Iterator[str]:
    store = bundles.parent / "online"
    with serving(bundles, store=f"sqlite:{store}", allow_admin="true") as (where, _):
        wait_for(lambda: is_ready(where), 60.0)
        yield where


def is_ready(address: str) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(f"{address}/readyz", timeout=30).close()
        return True
    return False


def option(words: list[str], *names: str) -> str | None:
    return next((words[words.index(name) + 1] for name in names if name in words), None)


CURLS = [
    pytest.param(words, id=f"{block}-{place}")
    for block in of(*SHELL)
    if not is_drawing(block)
    for place, words in enumerate(commands(block))
    if words[0] == "curl"
]


@pytest.mark.parametrize("words", CURLS)
def test_requests_are_answered(words: list[str], address: str) -> None:
    url = next(word for word in words if ":8000/" in word)
    body = option(words, "--json", "-d")
    # A page cuts ids short.
    sent = None if body is None else body.replace("019aab51...", 32 * "0").encode()
    request = urllib.request.Request(
        address + url[url.index(":8000/") + len(":8000") :],
        data=sent,
        headers={"content-type": "application/json"},
        method=option(words, "-X"),
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
    except urllib.error.HTTPError as error:
        pytest.fail(f"{error.code}: {error.read().decode()}")


def write_shop(folder: Path) -> None:
    """Write the files that a program of the documentation fits on."""
    users = ["ann", "ben", *(f"user-{number}" for number in range(38))]
    rows = [
        (user, f"sku-{1 + (7 * place + 3 * number) % 30}", 1_700_000_000 + 60 * place)
        for number, user in enumerate(users)
        for place in range(8)
    ]
    frame = pl.DataFrame(rows, schema=["customer", "sku", "ts"], orient="row")
    frame.write_csv(folder / "events.csv")
    items = [(f"sku-{number}", f"wool hat {number}") for number in range(1, 31)]
    pl.DataFrame(items, schema=["sku", "title"], orient="row").write_csv(folder / "items.csv")


# Code of a reader's own package runs in tests/integration/models/test_outside_model.py.
RUN_HERE = [block for block in of("python") if "my_package" not in block.text]


@pytest.mark.parametrize("block", RUN_HERE, ids=str)
def test_programs_run(
    block: Block, bundles: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundles.parents[2])
    day = Path("events/2026-11-22.parquet")
    day.parent.mkdir(exist_ok=True)
    pl.DataFrame({"user_id": ["4711", "4712"]}).write_parquet(day)
    write_shop(Path())
    text = block.text.replace("http://127.0.0.1:8000", address)
    text = re.sub(r'budget="\w+"', 'budget="8s"', text)
    if "onnx_lists" in text:
        monkeypatch.syspath_prepend(ROOT / "examples")
        export_bundle(load_bundle(bundles / "current"), Path("exported"))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, str(block), "exec"), names)
    # Connections that a program keeps until it ends.
    if isinstance(client := names.get("client"), Client):
        client.close()
