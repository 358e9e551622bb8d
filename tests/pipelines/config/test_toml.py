import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from pipelines.config.removed import REMOVED_KEYS
from pipelines.config.run import RunConfig
from pipelines.config.toml import list_keys, parse_assignment, read_toml, to_toml, validate
from pipelines.engine.artifacts import plain
from pipelines.presets.resolve import resolve


@dataclass(frozen=True, kw_only=True)
class Tower:
    embedding_dim: int = 64
    temperature: float = 0.05
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class Column:
    kind: Literal["category", "number"] = "category"


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    tower: Tower = field(default_factory=Tower)
    columns: Mapping[str, Column] = field(default_factory=dict)
    events: Path | None = None


def test_faults_name_file_key_value_and_what_is_allowed():
    for table, message in (
        (
            {"tower": {"embeding_dim": 3}},
            "unknown key 'tower.embeding_dim'; did you mean 'tower.embedding_dim'?",
        ),
        ({"embedding_dim": 3}, "unknown key 'embedding_dim'; did you mean 'tower.embedding_dim'?"),
        (
            {"columns": {"age": {"knd": "number"}}},
            "unknown key 'columns.age.knd'; did you mean 'columns.age.kind'?",
        ),
        (
            {"tower": {"zzz": 3}},
            "unknown key 'tower.zzz'; allowed here: embedding_dim, features, temperature",
        ),
        ({"tower": {"embedding_dim": "32"}}, "tower.embedding_dim = '32': Input should be a valid"),
        ({"columns": {"age": {"kind": "numbr"}}}, "columns.age.kind = 'numbr': Input should be"),
        ({"tower": {"temperature": -1}}, "tower: temperature must be > 0, got -1.0"),
        ({"tower": {"features": ["a", 3]}}, "tower.features[1] = 3: Input should be"),
        ({"tower": 3}, "tower = 3: "),
    ):
        with pytest.raises(ValueError, match=re.escape(f"shop.toml: {message}")):
            validate(Run, {"name": "shop", **table}, "shop.toml")


def test_removed_keys_are_refused_with_what_to_do(tmp_path):
    known, path = set(list_keys(RunConfig)), tmp_path / "shop.toml"
    lines, expected = [], set()
    for removed, instead in REMOVED_KEYS.items():
        key, _, value = removed.partition(" = ")
        assert (key in known) == bool(value), key
        if not value:
            lines.append(f"{key} = 1\n")
            expected.add(f"{path}: {removed!r} was removed; {instead}")
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"shop\.toml") as caught:
        resolve(path)
    assert expected <= set(str(caught.value).splitlines())
    for removed in (one for one in REMOVED_KEYS if " = " in one):
        with pytest.raises(ValueError, match=f"'{removed}' was removed"):
            resolve(preset="shop", assignments=[removed])


def test_every_fault_is_told_at_once():
    with pytest.raises(ValueError, match=r"shop\.toml: name is missing"):
        validate(Run, {}, "shop.toml")
    with pytest.raises(ValueError, match="a") as caught:
        validate(Run, {"name": 3, "tower": {"embedding_dim": True}}, "shop.toml")
    assert len(str(caught.value).splitlines()) == 2


def test_assignments_are_toml_or_texts_and_bad_ones_show_an_example():
    known = {
        "a.b=3": {"a": {"b": 3}},
        "a.b=true": {"a": {"b": True}},
        "a=[1, 2]": {"a": [1, 2]},
        'a="x=y"': {"a": "x=y"},
        "a.b = plain words": {"a": {"b": "plain words"}},
    }
    assert {text: parse_assignment(text) for text in known} == known
    for text in ("a.b", "=3", "a..b=3"):
        with pytest.raises(ValueError, match=r"not an assignment; write --set table\.key=value"):
            parse_assignment(text)


def test_resolved_configuration_reads_back_equal():
    run = Run(
        name='a "shop"\n',
        tower=Tower(temperature=1e-05, features=("a", "b")),
        columns={"the age": Column(kind="number")},
        events=Path("events.csv"),
    )
    text = to_toml(plain(run))
    assert validate(Run, tomllib.loads(text), "resolved") == run
    whole = validate(Run, {"name": "shop", "tower": {"temperature": 1}}, "shop.toml")
    assert type(whole.tower.temperature) is float


def test_missing_and_broken_files_are_named(tmp_path):
    (tmp_path / "shop.toml").write_text("events = my.csv\n")
    with pytest.raises(ValueError, match=r"shp\.toml; did you mean .*shop\.toml\?"):
        read_toml(tmp_path / "shp.toml")
    with pytest.raises(ValueError, match=r"shop\.toml is not valid TOML: .*line 1.*quotes"):
        read_toml(tmp_path / "shop.toml")
