"""Formulas: blocks of TeX become MathML, which browsers show without a script."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, _language: str, css_class: str, *_: Any, **__: Any) -> str:
    """Turn a block ```math into MathML; called by pymdownx.superfences."""
    return f'<div class="{css_class}">{convert(source.strip(), display="block")}</div>'
