"""What all sections of settings share; `test_config.py` tries it on real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from prota.settings import ConfigError, Section


class Inner(Section):
    removed: ClassVar[Mapping[str, object]] = {"gone": "fixed", "rate": 0.5}

    kept: int = 1


class Outer(Section):
    removed: ClassVar[Mapping[str, object]] = {"extra": {}}

    inner: Inner = Inner()


def test_removed_settings_are_read_past_where_they_have_their_old_default() -> None:
    assert Inner(gone="fixed", rate=0.5, kept=2) == Inner(kept=2)
    assert Outer(inner={"gone": "fixed"}, extra={}) == Outer()
    assert Inner(gone="fixed").model_dump() == {"kept": 1}


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Inner(gone="learned"), "gone was removed: must be 'fixed', its former default, got 'learned'"),
        (lambda: Inner(rate=None), "rate was removed: must be 0.5, its former default, got None"),
        (lambda: Outer(inner={"rate": 1}), "inner.rate was removed: must be 0.5, its former default, got 1"),
        (lambda: Outer(extra={"a": 1}), "extra was removed: must be {}, its former default, got {'a': 1}"),
        (lambda: Outer(gone="fixed"), "gone is not a setting; allowed: inner"),
    ],
)
def test_other_values_of_removed_settings_are_refused(build: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()  # type: ignore[operator]
    assert str(caught.value) == sentence
