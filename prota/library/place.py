"""Where a library lies: in a folder, or under a prefix of an object store.

A folder has a lock for its one writer, and its files are on disk before they count. An object store has no locks and
needs no flushing; there a small file is replaced only while it is still the one that was read, so of two writers who
began at the same state one is told that it came second.
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
from typing import TYPE_CHECKING, Any, Protocol

from prota.files import hold, write_atomically
from prota.library.problems import DisturbedError, RefusedError, UnreachableError, local_problem, remote_problem
from prota.library.records import LibraryError
from prota.platform import sync

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["Bucket", "Folder", "Lock", "Place", "SmallFile", "Where", "flush"]

# What is between the scheme and the rest is one slash where someone made a Path of an address.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?:/)?(.*)", re.DOTALL)
SCHEMES = ("s3", "gs", "az")
# An answer may take a while, and a server may be away for a while.
TIMEOUT, CONNECT_TIMEOUT, RETRIES, RETRY_SECONDS = 60, 10, 7, 180
# Seconds before the n-th new try of what no client may repeat by itself, at most n times this.
PAUSE = 0.3


@dataclass(frozen=True)
class SmallFile:
    """A small file as it was read."""

    text: str
    tag: dict[str, str] | None = None
    """By which an object store knows this state of it again; None in a folder."""


class Lock(Protocol):
    """What a writer holds."""

    def close(self) -> None: ...


class Unlocked:
    """Where there is no lock to be had."""

    def close(self) -> None:
        """Nothing to let go."""


class Place(ABC):
    """Where the files of a library are; `str` of it is what its user calls it."""

    exclusive: bool
    """Whether a writer can keep others away."""
    options: dict[str, str] | None
    """For Lance."""

    @staticmethod
    def of(where: Where) -> Place:
        """A folder, or an address such as s3://bucket/prefix."""
        if isinstance(where, Place):
            return where
        address = ADDRESS.fullmatch(os.fspath(where))
        if address is None:
            return Folder(Path(where))
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
        return Place.of, (str(self),)

    def file(self, name: str) -> str:
        """How a file of the library is called."""
        return f"{self}/{name}"

    def dataset(self, name: str) -> str:
        """What Lance calls one of the datasets."""
        return self.file(f"{name}.lance")

    @abstractmethod
    def absolute(self) -> Place:
        """The same place, for processes that run elsewhere on this machine."""

    @abstractmethod
    def same(self, other: Place) -> bool:
        """Whether the other is this place under another name."""

    @abstractmethod
    def prepare(self) -> None:
        """Be able to hold a library."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def read(self, name: str) -> SmallFile:
        """A small file; FileNotFoundError where there is none."""

    @abstractmethod
    def write(self, name: str, text: str, before: SmallFile | None) -> SmallFile:
        """Write a small file in one stroke; on an object store `DisturbedError` unless it still is as it was before."""

    @abstractmethod
    def problem(self, error: Exception) -> Exception:
        """What an error of Lance means here; itself, where Lance is right."""

    @abstractmethod
    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Lock:
        """The writer's lock, waited for as long as allowed; KeyboardInterrupt where that is to end sooner."""

    @abstractmethod
    def files(self) -> set[str]:
        """All files of the datasets that a power cut could take."""

    @abstractmethod
    def settle(self, settled: set[str]) -> None:
        """Have all files of the datasets on disk that are not known to be."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of all files."""


Where = str | os.PathLike[str] | Place


class Folder(Place):
    """A folder of a file system."""

    exclusive = True
    options = None

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def absolute(self) -> Folder:
        return Folder(self.path.absolute())

    def same(self, other: Place) -> bool:
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

    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Lock:
        """Its file tells others who holds it."""
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
            return lock

    def files(self) -> set[str]:
        roots = (self.dataset("videos"), self.dataset("segments"))
        return {os.path.join(parent, name) for root in roots for parent, _, names in os.walk(root) for name in names}

    def settle(self, settled: set[str]) -> None:
        """Lance leaves that to the system's leisure."""
        files = self.files()
        fresh = files - settled
        folders = {str(parent) for path in fresh for parent in Path(path).parents if parent.is_relative_to(self.path)}
        flush(fresh | folders)
        settled.clear()
        settled.update(files)

    def size(self) -> int:
        return sum(_size(os.path.join(parent, name)) for parent, _, names in os.walk(self.path) for name in names)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        # A writer cleans up while this one counts.
        return 0


def flush(paths: Iterable[str]) -> None:
    """Have these files and folders on disk."""
    for path in paths:
        # Lance gives a file its name when it is whole: what a worker still writes goes by another until then.
        with suppress(FileNotFoundError):
            sync(path)


class Bucket(Place):
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

    def same(self, other: Place) -> bool:
        return str(self) == str(other)

    def prepare(self) -> None:
        """Prefixes need not be made, but buckets."""
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
        """What finds keys that are not in the environment, such as those of a profile; Lance does that by itself."""
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
        """Tell errors of the client in the user's terms."""
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
        """The client repeats no request on a condition: it cannot know whether a lost answer said yes. Looking can."""
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
                raise DisturbedError.at(self) from problem
        assert problem is not None
        raise problem

    def _now(self, name: str) -> SmallFile | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def problem(self, error: Exception) -> Exception:
        return remote_problem(self, error)

    def lock(self, wait: float, should_stop: Callable[[], bool]) -> Lock:
        return Unlocked()

    def files(self) -> set[str]:
        return set()

    def settle(self, settled: set[str]) -> None:
        """What the store has said yes to is safe."""

    def size(self) -> int:
        return sum(self._listed())

    def _listed(self) -> Iterator[int]:
        """The sizes of all objects."""
        import obstore

        with self._asking():
            for batch in obstore.list(self._client):
                yield from (found["size"] for found in batch)


def _tag(said: Mapping[str, Any]) -> dict[str, str]:
    # Some stores go by the one, some by the other.
    return {name: said[name] for name in ("e_tag", "version") if said[name] is not None}
