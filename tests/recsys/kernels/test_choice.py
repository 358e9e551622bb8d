"""The switch of the kernels, and their tuned configurations."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recsys.kernels import choice
from recsys.kernels.choice import (
    KERNELS,
    Question,
    config_for,
    file_name,
    is_on,
    lookup,
    parsed_switch,
    runs,
    shape_class,
    summary,
    uses,
    without,
)
from recsys.kernels.hstu_attention.op import hstu_attention, reference_attention
from tests.benchmarks.kernels.tune import Tuned, store
from tests.recsys.testing.kernels import asking, trying


def test_on_a_gpu_every_kernel_runs_but_those_that_are_off(gpu: None) -> None:
    assert [use.kernel for use in uses(GPU) if use.runs] == list(KERNELS)
    with without("hstu_attention", "topk_search"):
        off = {use.kernel: use.reason for use in uses(GPU) if not use.runs}
        assert off == {
            "hstu_attention": "RECSYS_KERNELS_OFF names it: padded attention in torch",
            "topk_search": "RECSYS_KERNELS_OFF names it: torch's product and topk",
        }
        with without("all"):
            assert summary(GPU).startswith("kernels on cuda: none; without embedding_bag,")
        assert not is_on("hstu_attention")
    assert is_on("hstu_attention")


def test_a_name_that_is_no_kernels_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="names hstu, which is no kernel; there are embedding_bag"):
        parsed_switch("topk_search, hstu")
    assert parsed_switch(" topk_search ,") == {"topk_search"}
    assert parsed_switch("") == set()


@pytest.mark.interpreted(only=True)
def test_a_kernel_that_is_off_gives_way_to_its_reference() -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 5, 5, 12])
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))
    assert runs("hstu_attention", q)
    found = hstu_attention(q, k, v, offsets, 8)
    with without("hstu_attention"):
        assert not runs("hstu_attention", q)
        expected = hstu_attention(q, k, v, offsets, 8)
    assert torch.equal(expected, reference_attention(q, k, v, offsets, 8))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


GPU = torch.device("cuda")
DEVICE = "NVIDIA Example 9000 (test)"
DEFAULT = {"block_b": 8, "num_warps": 4}
TUNED = {"block_b": 32, "num_warps": 2}
QUESTION = Question(
    kernel="topk_search.group_maxima",
    shapes=shape_class(dim=64, length=20),
    dtype=torch.bfloat16,
    default=DEFAULT,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECSYS_KERNEL_CACHE", str(tmp_path / "kernels"))
    choice.forget()
    return tmp_path / "kernels"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.kernels.choice.has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: DEVICE)


def ask(default: dict[str, int] = DEFAULT) -> dict[str, int]:
    return config_for(QUESTION.kernel, QUESTION.shapes, QUESTION.dtype, default)


def store_tuned() -> Path:
    return store([Tuned(question=QUESTION, config=TUNED, ms=0.5, default_ms=0.75)], DEVICE)


def test_what_was_stored_is_what_a_launch_gets(
    gpu: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask() == DEFAULT
    assert store_tuned() == folder / "nvidia-example-9000-test.json"
    assert ask() == TUNED
    choice.forget()
    assert ask({"another_number": 1}) == {"another_number": 1}, "of another kernel's numbers"
    assert lookup(replace(QUESTION, shapes="dim128-length32"), DEVICE) is None
    assert lookup(QUESTION, "NVIDIA Other") is None
    # Entries of other sources do not count.
    choice.forget()
    monkeypatch.setattr(choice, "source_digest", lambda kernel: "changed")
    assert ask() == DEFAULT


def test_a_file_that_cannot_be_used_is_named_once_and_replaced(
    gpu: None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    path = folder / file_name(DEVICE)
    for content in (
        "",
        "{",
        "[]",
        '{"format": 99, "entries": {}}',
        '{"format": 1, "entries": {"a": {"source": "x", "config": {"block": "8"}}}}',
        '{"format": 1, "entries": {"a": {"config": {"block": 8}}}}',
        '{"format": 1, "entries": [1]}',
        "\udc80",
    ):
        choice.forget()
        caplog.clear()
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with caplog.at_level(logging.WARNING):
            assert ask() == DEFAULT
            assert config_for("topk_search.x", QUESTION.shapes, torch.float32, DEFAULT) == DEFAULT
        assert len(caplog.records) == 1
        assert str(path) in caplog.text
        assert "measured again or removed" in caplog.text
        store_tuned()
        assert ask() == TUNED


def test_launches_can_be_asked_and_told() -> None:
    with asking() as questions:
        assert ask() == DEFAULT
    assert questions == [QUESTION]
    with trying(QUESTION.kernel, TUNED):
        assert ask() == TUNED
    assert ask() == DEFAULT


def test_what_is_shipped_can_be_read() -> None:
    for path in choice.SHIPPED.glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert choice.checked_entries(document)
        assert path.name == file_name(document["device"])
