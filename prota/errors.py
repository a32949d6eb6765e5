"""One base for all errors that a user can mend, and one line for any error."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["ClusterError", "EvaluationError", "MissingPackageError", "ProtaError", "UsageError", "one_line"]


class ProtaError(Exception):
    """What is wrong and what to do about it, in one line. Anything else that is raised is a bug in prota.

    ``code`` names the kind of error for programs and does not change with the wording.
    """

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    """Of the command line: 2 for wrong usage, 1 for a failure."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message, self.hint = message, hint

    def __reduce__(self) -> tuple[object, ...]:
        # As itself in another process, whatever its own constructor takes.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ProtaError], args: tuple[object, ...], state: dict[str, object]) -> ProtaError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(ProtaError, ValueError):
    """A command or a call that asks for what cannot be."""

    code = "usage"
    exit_status = 2


class MissingPackageError(ProtaError, RuntimeError):
    """An optional package that is not installed."""

    code = "missing-package"


class ClusterError(ProtaError, RuntimeError):
    """A Ray cluster that does not answer, or lost what it worked on."""

    code = "cluster"


class EvaluationError(ProtaError, ValueError):
    """Scores, targets or a system that cannot be evaluated."""

    code = "evaluation"


def one_line(error: BaseException) -> str:
    """What an error says, in one line; its type where it says nothing."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        # The system's own errors are numbers and names.
        said = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        if isinstance(error, FileExistsError):
            said = "cannot be a folder, a file of that name exists; give another path"
        elif isinstance(error, NotADirectoryError):
            said = "a part of this path is a file; give another path"
        text = f"{error.filename}: {said}"
    return text.strip().split("\n", 1)[0].strip() or type(error).__name__
