"""Errors of storage."""

from __future__ import annotations

import errno
import os
import re

from prota.library.records import LibraryError

__all__ = ["ConflictError", "RefusedError", "UnreachableError", "local_problem", "remote_problem", "short"]


class ConflictError(LibraryError):
    """Another writer has committed since this one began; its commit stands."""

    @classmethod
    def at(cls, place: object) -> ConflictError:
        return cls(
            f"{place} is being written by another process too: what both have committed is kept; "
            "run this again when the other is done"
        )


class UnreachableError(LibraryError):
    """An object store does not answer, or answers with an error that may pass."""

    @classmethod
    def at(cls, place: object, error: BaseException) -> UnreachableError:
        return cls(f"{place} cannot be reached ({short(error)}): see to the address, the network and the keys")


class RefusedError(LibraryError):
    """An object store refuses access."""

    @classmethod
    def at(cls, place: object, error: BaseException) -> RefusedError:
        return cls(f"{place} refuses ({short(error)}): see to the keys in the environment or the profile")


def local_problem(place: object, error: Exception) -> Exception:
    """The error to raise for an error of Lance in a folder: the same one if it is clear enough."""
    if os.strerror(errno.ENOSPC) in str(error):
        return LibraryError(f"no room is left for {place}: make some, and give the same command again")
    return error


def remote_problem(place: object, error: Exception) -> Exception:
    """The error to raise for an error of Lance on an object store: the same one if something is missing."""
    if isinstance(error, LibraryError) or "not found" in str(error).lower():
        return error
    if re.search(r"concurrent|conflict", str(error), re.IGNORECASE):
        return ConflictError.at(place)
    if re.search(r"\b(401|403)\b", short(error)):
        return RefusedError.at(place, error)
    return UnreachableError.at(place, error)


def short(error: BaseException) -> str:
    """The message of Lance or the client without places in its source code, HTML and signed addresses."""
    # After the first words of a client's error comes all that led to it.
    text = " ".join(str(error).split("\n\nDebug source")[0].split())
    text = re.sub(r",\s/\S+\.rs:\d+(:\d+)?", "", text)
    text = re.sub(r":?\s*<(\?xml|html|!doctype|Error)\b.*", "", text, flags=re.IGNORECASE)
    text = re.sub(r"(\w+://[^\s?]+)\?\S*", r"\1", text)
    text = re.sub(
        r"(Generic \w+ error: )*Error performing (\w+) (\S+) in .*? - (Server returned non-2xx status code: )?",
        r"\2 \3: ",
        text,
    )
    return text.replace("Invalid user input: ", "").replace("External error: ", "") or type(error).__name__
