"""Parameters of a page, read with an error that names the allowed values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


class QueryError(ValueError):
    """A value that is not allowed; names the parameter, the value and those allowed."""


class NotFoundError(LookupError):
    """The subject of a parameter is not there, or no longer."""


@dataclass(frozen=True)
class Query:
    """Values by name, as in the page's address."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, **values: str | tuple[str, ...] | None) -> Query:
        """Make a query from plain values; None is left out."""
        return cls(
            {
                name: (value,) if isinstance(value, str) else value
                for name, value in values.items()
                if value is not None
            }
        )

    def text(self, name: str, default: str = "") -> str:
        """Read a text."""
        found = self.values.get(name, ())
        return found[0] if found else default

    def several(self, name: str, *, at_most: int) -> tuple[str, ...]:
        """Read values in their order, each once."""
        found = tuple(dict.fromkeys(value for value in self.values.get(name, ()) if value))
        if len(found) > at_most:
            raise QueryError(f"{name} has {len(found)} values; at most {at_most} are allowed")
        return found

    def choice(self, name: str, allowed: Collection[str], default: str) -> str:
        """Read one of a few values."""
        found = self.text(name, default)
        if found not in allowed:
            some = ", ".join(sorted(allowed)[:20])
            raise QueryError(f"{name} is {found!r}, which is none of: {some}")
        return found

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """Read a whole number."""
        found = self.text(name, str(default))
        try:
            value = int(found)
        except ValueError:
            raise QueryError(f"{name} is {found!r}; a whole number is needed") from None
        if not least <= value <= most:
            raise QueryError(f"{name} is {value}; {least} to {most} are allowed")
        return value
