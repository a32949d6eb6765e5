"""The location of a library: a folder, or a prefix of an object store.

A folder has a lock for its one writer, and its files are flushed to disk before they count. An object store has no
locks and needs no flushing; a small file is replaced there only if it has not changed since it was read: of two
concurrent writers one gets a `ConflictError`.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prota.files import hold, write_atomically
from prota.library.records import DamagedError, LibraryError
from prota.platform import sync

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["Bucket", "ConflictError", "Folder", "Location", "RefusedError", "Release", "SmallFile", "UnreachableError"]
__all__ += ["Where", "contained", "flush", "short"]

# A single slash after the scheme: the address was converted to a Path.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?:/)?(.*)", re.DOTALL)
SCHEMES = ("s3", "gs", "az")
# Seconds for an answer and a connection, and how long requests are retried.
TIMEOUT, CONNECT_TIMEOUT, RETRIES, RETRY_SECONDS = 60, 10, 7, 180
LAST_VERSION = 2**64 - 1
# How Lance reports files that it cannot decode.
UNDECODABLE = re.compile(r"corrupt|LanceError|Lance file|panicked|Task was aborted", re.IGNORECASE)
PANIC = "PanicException"
# Seconds before the n-th retry of a conditional write, which the client does not retry: n times this.
PAUSE = 0.3


class ConflictError(LibraryError):
    """Another writer has committed since this one began; its commit stands."""

    @classmethod
    def at(cls, location: Location) -> ConflictError:
        return cls(
            f"{location} is being written by another process too: what both have committed is kept; "
            "run this again when the other is done"
        )


class UnreachableError(LibraryError):
    """An object store does not answer, or reports an error that may be temporary."""

    @classmethod
    def at(cls, location: Location, error: BaseException) -> UnreachableError:
        return cls(f"cannot reach {location} ({short(error)}); check the URL, network and credentials")


class RefusedError(LibraryError):
    """An object store denies access."""

    @classmethod
    def at(cls, location: Location, error: BaseException) -> RefusedError:
        return cls(f"{location} denies access ({short(error)}); check the credentials in the environment or profile")


def short(error: BaseException) -> str:
    """The message of Lance or the client without source locations, HTML and the queries of signed URLs."""
    # The first paragraph of a client's error is followed by its causes.
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


@contextmanager
def contained() -> Iterator[None]:
    """Raise a panic of Lance over a corrupt file, which is no `Exception`, as an OSError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        raise OSError(f"Lance panicked: {error}") from error


@dataclass(frozen=True)
class SmallFile:
    """A small file as it was read."""

    text: str
    tag: dict[str, str] | None = None
    """The entity tag or version on an object store; None in a folder."""


Release = Callable[[], None]
"""Releases a lock."""


class Location(ABC):
    """Where the files of a library are; `str` gives the path or address as the user wrote it."""

    exclusive: bool
    """Whether a lock keeps other writers away."""
    options: dict[str, str] | None
    """Storage options for Lance."""

    @staticmethod
    def of(where: Where) -> Location:
        """The location for a folder or an address such as s3://bucket/prefix."""
        if isinstance(where, Location):
            return where
        address = ADDRESS.fullmatch(os.fspath(where))
        if address is None:
            return Folder(Path(where).expanduser())
        scheme, rest = address[1].lower(), address[2].strip("/")
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise LibraryError(f"{scheme}:// is not supported: give a folder, or an address with {known}")
        if not rest or any(sign in rest for sign in "@?#"):
            raise LibraryError(
                f"invalid {scheme}:// address: write {scheme}://bucket/prefix, with the credentials in the environment "
                "or a profile"
            )
        return Bucket(f"{scheme}://{rest}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes open their own connections.
        return Location.of, (str(self),)

    def dataset(self, name: str) -> str:
        """The path or address of a Lance dataset."""
        return f"{self}/{name}.lance"

    def absolute(self) -> Location:
        """The same location, independent of the working directory."""
        return self

    def same(self, other: Location) -> bool:
        """Whether both are the same location."""
        return str(self) == str(other)

    @abstractmethod
    def prepare(self) -> None:
        """Create the folder; check that the bucket exists."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether the file exists."""

    @abstractmethod
    def read(self, name: str) -> SmallFile:
        """Read a small file; FileNotFoundError if it does not exist."""

    @abstractmethod
    def write(self, name: str, text: str, before: SmallFile | None) -> SmallFile:
        """Write a small file atomically; on an object store `ConflictError` if it has changed since `before`."""

    @abstractmethod
    def problem(self, error: Exception) -> Exception:
        """The error to raise for an error of Lance; the same one if it needs no translation."""

    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Release:
        """Take the writer's lock, waiting up to `wait` seconds; KeyboardInterrupt if `should_stop` returns True."""
        return lambda: None

    def settle(self) -> None:  # noqa: B027
        """Flush all files of the datasets; an object store does so by itself."""

    def discard(self, name: str, after: int | None = None) -> None:  # noqa: B027
        """In a folder, delete the versions of a dataset after this one, or those that a power cut left empty."""

    def content(self, name: str) -> bytes:
        """In a folder, the content of a file."""
        raise NotImplementedError

    def keep(self, files: Mapping[str, bytes]) -> None:  # noqa: B027
        """In a folder, keep copies of these files alone, below ``spare``; the last one makes them count."""

    def checksum(self, folder: str) -> int:
        """In a folder, a checksum of all files below a folder; 0: not computed."""
        return 0

    @abstractmethod
    def size(self) -> int:
        """Total size of all files in bytes."""


Where = str | os.PathLike[str] | Location


class Folder(Location):
    """A folder of a file system."""

    exclusive = True
    options = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settled: set[str] = set()
        """Files that were flushed; Lance does not write to a file twice."""

    def __str__(self) -> str:
        return str(self.path)

    def absolute(self) -> Folder:
        return Folder(self.path.absolute())

    def same(self, other: Location) -> bool:
        return isinstance(other, Folder) and self.path.resolve() == other.path.resolve()

    def prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> SmallFile:
        return SmallFile((self.path / name).read_text(encoding="utf-8"))

    def write(self, name: str, text: str, before: SmallFile | None) -> SmallFile:
        write_atomically(self.path / name, text)
        return SmallFile(text)

    def problem(self, error: Exception) -> Exception:
        if os.strerror(errno.ENOSPC) in str(error):
            return LibraryError(f"no space left at {self}: free some and run the same command again")
        # Lance names the files, without the first slash.
        text = str(error).replace(str(self.path.absolute()).lstrip("/"), "")
        if UNDECODABLE.search(text) and os.strerror(errno.EACCES) not in text:
            return DamagedError.at(self, f"cannot read {self} ({short(error)})")
        return error

    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Release:
        """The lock file names the process that holds the lock."""
        path = self.path / "writer.lock"
        until = time.monotonic() + wait
        while True:
            try:
                lock = hold(path)
            except BlockingIOError as error:
                if should_stop():
                    raise KeyboardInterrupt from None
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                who = path.read_text(encoding="utf-8").strip() or "another process"
                raise LibraryError(f"{self} is locked by {who}: retry when it is done, or stop it") from error
            except OSError as error:
                raise LibraryError(f"cannot write to {self} ({error.strerror}); check its permissions") from error
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
            lock.flush()
            return lock.close

    def settle(self) -> None:
        """Flush the files written since the last call: Lance does not flush."""
        roots = (self.dataset("videos"), self.dataset("segments"))
        files = {os.path.join(parent, name) for root in roots for parent, _, names in os.walk(root) for name in names}
        fresh = files - self._settled
        folders = {str(parent) for path in fresh for parent in Path(path).parents if parent.is_relative_to(self.path)}
        flush(fresh | folders)
        self._settled = files

    def discard(self, name: str, after: int | None = None) -> None:
        for path in Path(self.dataset(name)).glob("_versions/*.manifest"):
            # Manifest names count down, so that the newest version sorts first.
            version = LAST_VERSION - int(path.stem)
            if version > after if after is not None else not path.stat().st_size:
                path.unlink()

    def content(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def keep(self, files: Mapping[str, bytes]) -> None:
        spare = self.path / "spare"
        for name, content in files.items():
            file = spare / name
            if not file.parent.is_dir():
                file.parent.mkdir(parents=True)
                flush(str(parent) for parent in file.parents if parent.is_relative_to(self.path))
            if not (file.is_file() and file.read_bytes() == content):
                write_atomically(file, content)
        for file in spare.rglob("*"):
            if file.is_file() and file.relative_to(spare).as_posix() not in files:
                file.unlink()

    def checksum(self, folder: str) -> int:
        found = 1
        for path in sorted((self.path / folder).rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    while block := file.read(2**22):
                        found = zlib.crc32(block, found)
        return found

    def size(self) -> int:
        total = 0
        for parent, _, names in os.walk(self.path):
            for name in names:
                # A concurrent writer may delete files.
                with suppress(FileNotFoundError):
                    total += os.stat(os.path.join(parent, name)).st_size
        return total


def flush(paths: Iterable[str]) -> None:
    """Flush files and folders to disk."""
    for path in paths:
        # Lance writes a file under a temporary name, and renames it when it is complete.
        with suppress(FileNotFoundError):
            sync(path)


class Bucket(Location):
    """A prefix of an object store. Credentials come from the environment or a profile, and are never stored."""

    exclusive = False

    def __init__(self, address: str) -> None:
        if find_spec("obstore") is None:
            raise LibraryError(f"{address} is on object storage, which requires obstore: pip install obstore boto3")
        self.address = address
        self.options = {
            "timeout": f"{TIMEOUT}s",
            "connect_timeout": f"{CONNECT_TIMEOUT}s",
            "client_max_retries": str(RETRIES),
            "client_retry_timeout": str(RETRY_SECONDS),
            "download_retry_count": str(RETRIES),
        }

    def __str__(self) -> str:
        return self.address

    def prepare(self) -> None:
        """A prefix need not exist, its bucket must."""
        try:
            next(self._listed(), None)
        except (FileNotFoundError, UnreachableError) as error:
            if isinstance(error, UnreachableError) and "404" not in str(error):
                raise
            raise LibraryError(f"{self}: bucket not found; create it, or give another") from None

    @cached_property
    def _client(self) -> ObjectStore:
        from obstore.store import from_url

        # No connection options such as timeouts: they would replace those of the environment.
        given: dict[str, Any] = {
            "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        }
        if (provider := self._keys()) is not None:
            given["credential_provider"] = provider
        with self._asking():
            return from_url(self.address, **given)

    def _keys(self) -> Any:
        """A provider for credentials of a profile; None where they are in the environment or there are none."""
        if not self.address.startswith("s3://") or "AWS_ACCESS_KEY_ID" in os.environ:
            return None
        profile = os.environ.get("AWS_PROFILE")
        if find_spec("boto3") is None:
            if profile is not None:
                raise LibraryError(f"the profile {profile} requires boto3: pip install boto3")
            return None
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            return Boto3CredentialProvider()
        except (BotoCoreError, ValueError) as error:
            if profile is not None:
                raise LibraryError(f"the profile {profile} has no credentials ({error}); check AWS_PROFILE") from error
            # The client looks for the machine's own.
            return None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Translate errors of the client."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except FileNotFoundError:
            raise
        except (PermissionError, PermissionDeniedError, UnauthenticatedError) as error:
            raise RefusedError.at(self, error) from None
        except (OSError, BaseError) as error:
            raise UnreachableError.at(self, error) from None

    def exists(self, name: str) -> bool:
        import obstore

        try:
            with self._asking():
                obstore.head(self._client, name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> SmallFile:
        import obstore

        with self._asking():
            found = obstore.get(self._client, name)
            return SmallFile(bytes(found.bytes()).decode("utf-8"), _tag(found.meta))

    def write(self, name: str, text: str, before: SmallFile | None) -> SmallFile:
        """Retried here, because the client does not retry conditional writes; reading shows which one succeeded."""
        import obstore

        mode: Any = "create" if before is None else before.tag
        problem: UnreachableError | None = None
        for attempt in range(RETRIES):
            time.sleep(PAUSE * attempt)
            try:
                with self._asking():
                    put = obstore.put(self._client, name, text.encode("utf-8"), mode=mode)
                    return SmallFile(text, _tag(put))
            except UnreachableError as error:
                problem = error
            now = None
            with suppress(FileNotFoundError):
                now = self.read(name)
            if now is not None and now.text == text:
                return now
            if (now and now.text) != (before and before.text):
                raise ConflictError.at(self) from problem
        assert problem is not None
        raise problem

    def problem(self, error: Exception) -> Exception:
        if isinstance(error, LibraryError) or "not found" in str(error).lower():
            return error
        if re.search(r"concurrent|conflict", str(error), re.IGNORECASE):
            return ConflictError.at(self)
        if re.search(r"\b(401|403)\b", short(error)):
            return RefusedError.at(self, error)
        return UnreachableError.at(self, error)

    def size(self) -> int:
        return sum(self._listed())

    def _listed(self) -> Iterator[int]:
        """Sizes of all objects."""
        import obstore

        with self._asking():
            for batch in obstore.list(self._client):
                yield from (found["size"] for found in batch)


def _tag(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
