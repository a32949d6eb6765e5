"""How commands are parsed and shown: flags and arguments without a type, and `--ray` with or without an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["App", "RayCommand", "with_address"]

F = TypeVar("F", bound=Callable[..., Any])


def _without_types(parameters: list[Any]) -> list[Any]:
    """Remove `<bool>` of a flag, which takes no value, and `<list[Path]>` of an argument, which its help describes."""
    for parameter in parameters:
        if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class RayCommand(_Command):
    """A command whose --ray may have no address, which typer has no options for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `TyperCommand`."""
        return super().parse_args(ctx, with_address(args))


class App(typer.Typer):
    """Commands that are shown alike."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, pretty_exceptions_enable=False, **options)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[F], F]:
        """See `typer.Typer`."""
        return super().command(name, cls=cls or _Command, **options)


def with_address(args: list[str]) -> list[str]:
    """Add an address to every --ray that is not followed by one."""
    from prota.cluster.connect import LOCAL, is_address

    end = args.index("--") if "--" in args else len(args)
    alone = {
        place
        for place in range(end)
        if args[place] == "--ray" and not (place + 1 < end and is_address(args[place + 1]))
    }
    return [f"--ray={LOCAL}" if place in alone else arg for place, arg in enumerate(args)]
