"""The base of all settings: frozen sections, one-line errors, dotted overrides."""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from prota.errors import ProtaError

__all__ = ["ConfigError", "Derived", "Section", "merge", "parse_override", "table_row", "without_removed"]


class ConfigError(ProtaError, ValueError):
    """Invalid settings: unknown, out of range or inconsistent; each sentence names the field and the allowed values.

    Example
    -------
    >>> import prota
    >>> try:
    ...     prota.Config.build(overrides=["score.similarity=euclidean"])
    ... except prota.ConfigError as error:
    ...     print(error)
    score.similarity must be one of cosine, squared, offset, printed; got 'euclidean'
    """

    code = "config"
    exit_status = 2

    def __init__(self, *sentences: str) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


@dataclass(frozen=True)
class Derived:
    """A removed setting whose value follows from other settings."""

    instead: str
    """What decides now, for error messages."""
    value: Callable[[Mapping[str, Any]], object] | None = None
    """The value that the section's other saved settings imply; None: every saved value is accepted."""


class Section(BaseModel):
    """Base class of all settings: frozen, rejects unknown names, reports errors as sentences."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    removed: ClassVar[Mapping[str, object]] = {}
    """Settings of earlier versions, each with the value that is now always used, or a `Derived`."""

    @classmethod
    def upgraded(cls, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings that an earlier version saved, with renamed ones under their new names."""
        return saved

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = [_sentences(type(self), dict(problem)) for problem in error.errors(include_url=False)]
            raise ConfigError(*dict.fromkeys(itertools.chain(*found))) from None

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            for name, field in cls.model_fields.items():
                if isinstance(values.get(name), bool) and field.annotation in (int, float):
                    raise ValueError(f"{name} must be a number, got {values[name]!r}")
        return values

    def replace(self, **changes: Any) -> Self:
        """A validated copy with ``changes``."""
        return type(self)(**{**self.model_dump(), **changes})


def without_removed(
    section: type[Section], saved: Mapping[str, Any], path: str = "", *, unchecked: str = ""
) -> dict[str, Any]:
    """Settings that an earlier version saved, without those removed since; another value of these is an error.

    Below the path ``unchecked`` any value is accepted.
    """
    kept: dict[str, Any] = {}
    for name, value in section.upgraded(saved).items():
        if name in section.removed:
            expected = section.removed[name]
            if isinstance(expected, Derived):
                expected = expected.value(saved) if expected.value else value
            if value != expected and not (unchecked and path.startswith(unchecked)):
                raise ConfigError(f"{path}{name} was removed: must be {expected!r}, got {value!r}")
            continue
        kind = section.model_fields[name].annotation if name in section.model_fields else None
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Section):
            kept[name] = without_removed(kind, value, f"{path}{name}.", unchecked=unchecked)
        else:
            kept[name] = value
    return kept


def table_row(field: str, table: Mapping[str, dict[str, dict[str, Any]]], name: object) -> dict[str, dict[str, Any]]:
    """The row ``name`` of a table of named settings."""
    if not isinstance(name, str) or name not in table:
        raise ConfigError(f"{field} must be one of {', '.join(table)}; got {name!r}")
    return table[name]


def merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Update nested settings in place."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def parse_override(override: str) -> dict[str, Any]:
    """``score.lambda_=50`` → ``{"score": {"lambda_": 50}}``; a value that is not valid TOML is a string."""
    path, equals, raw = override.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"invalid override {override!r}: must have the form section.field=value")
    value: Any
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    for name in reversed(names):
        value = {name: value}
    result: dict[str, Any] = value
    return result


def _sentences(section: type[Section], problem: Mapping[str, Any]) -> list[str]:
    """One error of pydantic as sentences that name the field and the allowed values."""
    field, given = ".".join(str(part) for part in problem["loc"]), problem["input"]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return [f"{field}.{sentence}" for sentence in cause.sentences]
    if field in section.removed:
        now = section.removed[field]
        return [f"{field} was removed: delete it; {now.instead if isinstance(now, Derived) else f'it is {now!r}'}"]
    if problem["type"] == "extra_forbidden":
        known = list(section.model_fields)
        close = difflib.get_close_matches(field, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return [f"{field} is not a setting; {hint}allowed: {', '.join(known)}"]
    if problem["type"] == "literal_error":
        allowed = map(str, get_args(section.model_fields[field].annotation))
        return [f"{field} must be one of {', '.join(allowed)}; got {given!r}"]
    message = str(problem["msg"]).removeprefix("Value error, ").split(", unable to", 1)[0]
    if not field:
        return [message]
    return [f"{field} {message.replace('Input should be', 'must be')}, got {given!r}"]
