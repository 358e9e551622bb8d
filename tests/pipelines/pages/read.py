"""Read the page that an HTML file holds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def document_in(path: Path) -> dict[str, Any]:
    """Return the page of a file."""
    text = path.read_text(encoding="utf-8").split('type="application/json">')[1]
    found: dict[str, Any] = json.loads(text.split("</script>")[0])["exported"]
    return found


def blocks_in(path: Path) -> list[dict[str, Any]]:
    """List the blocks of a file's page that have a key, those of sections included."""

    def below(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for block in blocks:
            yield from below(block.get("blocks", []))
            if "key" in block:
                yield block

    return list(below(document_in(path)["blocks"]))
