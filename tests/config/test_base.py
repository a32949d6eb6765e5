"""What all sections of settings share; `test_config.py` tries it on real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from prota.config.base import ConfigError, Section, without_removed


class Inner(Section):
    removed: ClassVar[Mapping[str, object]] = {"gone": "fixed", "rate": 0.5}

    kept: int = 1


class Outer(Section):
    removed: ClassVar[Mapping[str, object]] = {"extra": {}}

    inner: Inner = Inner()


def test_removed_settings_of_saved_files_are_read_past() -> None:
    saved = {"inner": {"gone": "fixed", "rate": 0.5, "kept": 2}, "extra": {}, "unknown": 1}
    assert without_removed(Outer, saved) == {"inner": {"kept": 2}, "unknown": 1}
    assert without_removed(Outer, {}) == {}


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        ({"inner": {"gone": "learned"}}, "inner.gone was removed: must be 'fixed', got 'learned'"),
        ({"inner": {"rate": None}}, "inner.rate was removed: must be 0.5, got None"),
        ({"extra": {"a": 1}}, "extra was removed: must be {}, got {'a': 1}"),
    ],
)
def test_other_values_are_refused(saved: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        without_removed(Outer, saved)
    assert str(caught.value) == sentence


def test_elsewhere_a_removed_setting_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Outer(inner={"gone": "fixed"})
    assert caught.value.sentences == ("inner.gone was removed: delete it; it is 'fixed'",)
