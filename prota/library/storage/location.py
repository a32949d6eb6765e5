"""The location of a library: a folder, or a prefix of an object store.

A folder has a lock for its one writer, and its files are flushed to disk before they count. An object store has no
locks and needs no flushing; a small file is replaced there only if it has not changed since it was read, so that of two
writers that began at the same state one gets a `ConflictError`.
"""

from __future__ import annotations

import os
import re
import socket
import time
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
from prota.library.records import LibraryError
from prota.library.storage.problems import ConflictError, RefusedError, UnreachableError, local_problem, remote_problem
from prota.platform import sync

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["Bucket", "Folder", "Location", "Release", "SmallFile", "Where", "flush"]

# What is between the scheme and the rest is one slash where someone made a Path of an address.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?:/)?(.*)", re.DOTALL)
SCHEMES = ("s3", "gs", "az")
# An answer may take a while, and a server may be away for a while.
TIMEOUT, CONNECT_TIMEOUT, RETRIES, RETRY_SECONDS = 60, 10, 7, 180
LAST_VERSION = 2**64 - 1
# Seconds before the n-th new try of what no client may repeat by itself, at most n times this.
PAUSE = 0.3


@dataclass(frozen=True)
class SmallFile:
    """A small file as it was read."""

    text: str
    tag: dict[str, str] | None = None
    """By which an object store knows this state of it again; None in a folder."""


Release = Callable[[], None]
"""Gives up a lock."""


class Location(ABC):
    """Where the files of a library are; `str` gives the path or address as the user knows it."""

    exclusive: bool
    """Whether a lock keeps other writers away."""
    options: dict[str, str] | None
    """For Lance."""

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
            raise LibraryError(f"a library cannot lie at {scheme}://…: give a folder, or an address with {known}")
        if not rest or any(sign in rest for sign in "@?#"):
            raise LibraryError(
                f"{scheme}://… is not the address of a library: write {scheme}://bucket/prefix and nothing else; "
                "keys belong in the environment or a profile"
            )
        return Bucket(f"{scheme}://{rest}")

    def __reduce__(self) -> tuple[Any, ...]:
        # For workers elsewhere, whose connections are their own.
        return Location.of, (str(self),)

    def file(self, name: str) -> str:
        """The path or address of a file of the library."""
        return f"{self}/{name}"

    def dataset(self, name: str) -> str:
        """The path or address of a Lance dataset."""
        return self.file(f"{name}.lance")

    @abstractmethod
    def absolute(self) -> Location:
        """The same location, independent of the working directory."""

    @abstractmethod
    def same(self, other: Location) -> bool:
        """Whether both names lead to the same location."""

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
        """The error to raise for an error of Lance: the same one if it is clear enough."""

    @abstractmethod
    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Release:
        """Take the writer's lock, waiting up to `wait` seconds; KeyboardInterrupt if `should_stop` says so first."""

    @abstractmethod
    def settle(self) -> None:
        """Flush all files of the datasets to disk."""

    @abstractmethod
    def discard(self, name: str, after: int | None = None) -> None:
        """After a power cut: delete the versions of a dataset after one, or those that are empty files."""

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
        return local_problem(self, error)

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
                raise LibraryError(f"{self} is being written by {who}: try again when it is done, or end it") from error
            except OSError as error:
                raise LibraryError(f"{self} cannot be written ({error.strerror}): see to its permissions") from error
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
            lock.flush()
            return lock.close

    def settle(self) -> None:
        """Lance itself does not flush."""
        roots = (self.dataset("videos"), self.dataset("segments"))
        files = {os.path.join(parent, name) for root in roots for parent, _, names in os.walk(root) for name in names}
        fresh = files - self._settled
        folders = {str(parent) for path in fresh for parent in Path(path).parents if parent.is_relative_to(self.path)}
        flush(fresh | folders)
        self._settled = files

    def discard(self, name: str, after: int | None = None) -> None:
        for path in Path(self.dataset(name)).glob("_versions/*.manifest"):
            # Lance counts down in names, so that the newest version comes first.
            version = LAST_VERSION - int(path.stem)
            if version > after if after is not None else not path.stat().st_size:
                path.unlink()

    def size(self) -> int:
        return sum(_size(os.path.join(parent, name)) for parent, _, names in os.walk(self.path) for name in names)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        # A writer cleans up while this one counts.
        return 0


def flush(paths: Iterable[str]) -> None:
    """Flush files and folders to disk."""
    for path in paths:
        # Lance gives a file its name when it is whole: what a worker still writes goes by another until then.
        with suppress(FileNotFoundError):
            sync(path)


class Bucket(Location):
    """A prefix of an object store. Keys come from the environment or a profile, and go nowhere else."""

    exclusive = False

    def __init__(self, address: str) -> None:
        if find_spec("obstore") is None:
            raise LibraryError(f"{address} is on object storage, which needs obstore: pip install obstore boto3")
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

    def absolute(self) -> Bucket:
        return self

    def same(self, other: Location) -> bool:
        return str(self) == str(other)

    def prepare(self) -> None:
        """Prefixes need not exist, buckets must."""
        try:
            next(self._listed(), None)
        except (FileNotFoundError, UnreachableError) as error:
            if isinstance(error, UnreachableError) and "404" not in str(error):
                raise
            raise LibraryError(f"{self}: there is no such bucket: make it first, or give another") from None

    @cached_property
    def _client(self) -> ObjectStore:
        from obstore.store import from_url

        # No options of the connection, such as time limits: given here, they would replace all of the environment's.
        given: dict[str, Any] = {
            "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        }
        if (provider := self._keys()) is not None:
            given["credential_provider"] = provider
        with self._asking():
            return from_url(self.address, **given)

    def _keys(self) -> Any:
        """A provider for keys that are not in the environment, such as a profile's; Lance finds those by itself."""
        if not self.address.startswith("s3://") or "AWS_ACCESS_KEY_ID" in os.environ:
            return None
        profile = os.environ.get("AWS_PROFILE")
        if find_spec("boto3") is None:
            if profile is not None:
                raise LibraryError(f"the profile {profile} needs boto3 to be read: pip install boto3")
            return None
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            return Boto3CredentialProvider()
        except (BotoCoreError, ValueError) as error:
            if profile is not None:
                raise LibraryError(f"the profile {profile} gives no keys ({error}): see to AWS_PROFILE") from error
            # Nothing there; what the machine itself may have is the client's to find.
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
        """The client does not retry conditional requests; whether a lost answer was a success, the file tells."""
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
            now = self._now(name)
            if now is not None and now.text == text:
                return now
            if (now and now.text) != (before and before.text):
                raise ConflictError.at(self) from problem
        assert problem is not None
        raise problem

    def _now(self, name: str) -> SmallFile | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def problem(self, error: Exception) -> Exception:
        return remote_problem(self, error)

    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Release:
        return lambda: None

    def settle(self) -> None:
        """What an object store has acknowledged is durable."""

    def discard(self, name: str, after: int | None = None) -> None:
        """Nothing is half written on an object store."""

    def size(self) -> int:
        return sum(self._listed())

    def _listed(self) -> Iterator[int]:
        """Sizes of all objects."""
        import obstore

        with self._asking():
            for batch in obstore.list(self._client):
                yield from (found["size"] for found in batch)


def _tag(said: Mapping[str, Any]) -> dict[str, str]:
    # Some stores go by the one, some by the other.
    return {name: said[name] for name in ("e_tag", "version") if said[name] is not None}
