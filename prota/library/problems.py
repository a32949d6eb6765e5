"""What goes wrong where a library lies, in its user's terms."""

from __future__ import annotations

import errno
import os
import re

from prota.library.records import LibraryError

__all__ = ["DisturbedError", "RefusedError", "UnreachableError", "local_problem", "remote_problem", "short"]


class DisturbedError(LibraryError):
    """Another writer has come between; what it wrote counts."""

    @classmethod
    def at(cls, place: object) -> DisturbedError:
        return cls(
            f"{place} is being written by another process too: what both have committed is kept; "
            "run this again when the other is done"
        )


class UnreachableError(LibraryError):
    """An object store does not answer, or not with what was asked for."""

    @classmethod
    def at(cls, place: object, error: BaseException) -> UnreachableError:
        return cls(f"{place} cannot be reached ({short(error)}): see to the address, the network and the keys")


class RefusedError(LibraryError):
    """An object store says no, and would again."""

    @classmethod
    def at(cls, place: object, error: BaseException) -> RefusedError:
        return cls(f"{place} refuses ({short(error)}): see to the keys in the environment or the profile")


def local_problem(place: object, error: Exception) -> Exception:
    """What an error of Lance means in a folder; itself, where Lance says it well enough."""
    if os.strerror(errno.ENOSPC) in str(error):
        return LibraryError(f"no room is left for {place}: make some, and give the same command again")
    return error


def remote_problem(place: object, error: Exception) -> Exception:
    """What an error of Lance means on an object store; itself, where something is not there."""
    if isinstance(error, LibraryError) or "not found" in str(error).lower():
        return error
    if re.search(r"concurrent|conflict", str(error), re.IGNORECASE):
        return DisturbedError.at(place)
    if re.search(r"\b(401|403)\b", short(error)):
        return RefusedError.at(place, error)
    return UnreachableError.at(place, error)


def short(error: BaseException) -> str:
    """What Lance or the client says, without the places in its own source, the server's prose and signed addresses."""
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
