"""The base of all errors that a user can fix, and one-line messages for any error."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ClusterError",
    "EvaluationError",
    "MissingPackageError",
    "NotFoundError",
    "ProtaError",
    "UsageError",
    "one_line",
]


class ProtaError(Exception):
    """An error that the user can fix: the problem and what to do, in one line. Any other exception is a bug in prota.

    ``code`` identifies the kind of error for programs; it does not change with the wording.

    Example
    -------
    >>> import prota
    >>> try:
    ...     prota.Library("lib").search("a cat", k=0)
    ... except prota.ProtaError as error:
    ...     print(error.code, "|", error)
    library | k must be at least 1, got 0
    """

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    """Exit status of the command line: 2 for wrong usage, 1 for a failure."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message, self.hint = message, hint

    def __reduce__(self) -> tuple[object, ...]:
        # Unpickle to the same class, whatever arguments its constructor takes.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ProtaError], args: tuple[object, ...], state: dict[str, object]) -> ProtaError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(ProtaError, ValueError):
    """An invalid option, argument or combination of them."""

    code = "usage"
    exit_status = 2


class NotFoundError(ProtaError):
    """A file, folder, library or model that does not exist."""

    code = "not-found"

    @classmethod
    def library(cls, place: object) -> NotFoundError:
        """There is no library at this place."""
        return cls(f"no library at {place}", hint=f"create one with `prota index FOLDER --library {place}`")


class MissingPackageError(ProtaError, RuntimeError):
    """An optional package that is not installed."""

    code = "missing-package"


class ClusterError(ProtaError, RuntimeError):
    """A Ray cluster that does not respond, or that lost work in progress."""

    code = "cluster"


class EvaluationError(ProtaError, ValueError):
    """Scores, targets or a model that cannot be evaluated."""

    code = "evaluation"


def one_line(error: BaseException) -> str:
    """The message of an error in one line; the name of its type if it has none."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        said = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        if isinstance(error, FileExistsError):
            said = "cannot create the folder, a file of that name exists; give another path"
        elif isinstance(error, NotADirectoryError):
            said = "a parent of this path is a file; give another path"
        text = f"{error.filename}: {said}"
    return text.strip().split("\n", 1)[0].strip() or type(error).__name__
