"""Libraries on an object store: as in a folder, over a bad connection, and with no lock between writers."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from prota.library.library import Library
from prota.library.manage import compact, export, info, merge, remove, verify
from prota.library.records import LibraryError
from prota.library.storage import location as module
from prota.library.storage import versions
from prota.library.storage.location import Bucket, ConflictError, Folder, Location, RefusedError, UnreachableError
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer, write_segments
from prota.library.tokens import stamp_of
from tests.library.object_store import (
    BUCKET,
    KEY_ID,
    SECRET,
    Chooser,
    Fault,
    Proxy,
    before_change,
    before_first,
    from_change,
    is_change,
    now_and_then,
    once,
    serving,
    whenever,
)  # fmt: skip
from tests.library.small_library import STAMP, content, fill, seen, segments, video
from tests.library.storage import works
from tests.library.storage.faults import POINTS
from tests.library.storage.test_writer import WRITER, rows_of
from tests.library.worlds import toy_model, write_clips
from tests.processes import LIMIT, python

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with serving() as proxy:
        yield proxy


@pytest.fixture
def address(proxy: Proxy, request: pytest.FixtureRequest) -> str:
    """A place of each test's own."""
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)
    return f"s3://{BUCKET}/{name}/library"


@pytest.fixture(scope="module")
def template(proxy: Proxy) -> str:
    return fill(f"s3://{BUCKET}/template/library")


@pytest.fixture
def copies(template: str, address: str, proxy: Proxy) -> Callable[[object], str]:
    """Copies of a library with two videos, each at a location of its own."""

    def copy(name: object) -> str:
        old, new = (place.removeprefix(f"s3://{BUCKET}/") for place in (template, f"{address}-{name}"))
        for key in proxy.objects(template):
            proxy.client.copy_object(Bucket=BUCKET, Key=key.replace(old, new, 1), CopySource=f"{BUCKET}/{key}")
        return f"{address}-{name}"

    return copy


@pytest.fixture
def filled(copies: Callable[[object], str]) -> str:
    """A library with two videos at the test's own location."""
    return copies("filled")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PAUSE", 0.02)
    monkeypatch.setattr(module, "PAUSE", 0.02)
    monkeypatch.setattr(versions, "PATIENCE", 0.0)


class TestNames:
    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ("s3://bucket/a/b", "s3://bucket/a/b"),
            ("S3://bucket/a/b/", "s3://bucket/a/b"),
            # As a Path has it.
            (Path("s3://bucket/a/b"), "s3://bucket/a/b"),
            ("gs://bucket", "gs://bucket"),
            ("az://container/x", "az://container/x"),
        ],
    )
    def test_addresses(self, given: str | Path, name: str) -> None:
        place = Location.of(given)
        assert isinstance(place, Bucket)
        assert (str(place), str(place.absolute())) == (name, name)
        assert str(pickle.loads(pickle.dumps(place))) == name
        assert place.same(Location.of(name))
        assert not place.same(Location.of(f"{name}/c"))
        assert Location.of(place) is place

    @pytest.mark.parametrize("given", ["library", "./a:b/c", "/films/s3", "a\nb", Path("x")])
    def test_folders(self, given: str | Path) -> None:
        place = Location.of(given)
        assert isinstance(place, Folder)
        assert place.path == Path(given)
        assert place.same(place.absolute())
        assert not place.same(Location.of("s3://bucket"))

    @pytest.mark.parametrize(
        "given",
        ["ftp://host/x", "http://host/x", "s3://", "s3://key:secret@bucket/x", "s3://b/x?secret=1", "az://c/#secret"],
    )
    def test_others_are_refused_without_repeating_a_secret(self, given: str) -> None:
        with pytest.raises(LibraryError) as told:
            Location.of(given)
        assert "secret" not in str(told.value)

    def test_without_the_client_it_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "find_spec", lambda name: None)
        with pytest.raises(LibraryError, match="pip install obstore boto3"):
            Snapshot.open("s3://bucket/x")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        monkeypatch.setenv("AWS_PROFILE", "films")
        monkeypatch.setattr(module, "find_spec", lambda name: name == "obstore" or None)
        with pytest.raises(LibraryError, match="the profile films requires boto3"):
            Snapshot.open("s3://bucket/x")


class TestAsInAFolder:
    def test_everything_a_library_does(self, address: str, tmp_path: Path) -> None:
        with pytest.raises(LibraryError, match=f"no library at {address}: create one"):
            Snapshot.open(address)
        for where in (address, tmp_path / "library"):
            fill(where, "ab")
            with pytest.raises(LibraryError, match="already holds a library"):
                Writer.create(where, STAMP)
            remove(where, ["/films/b.mp4"])
            other = f"{address}-other" if where == address else tmp_path / "other"
            merge(where, [fill(other, "ax")])
            with pytest.raises(LibraryError, match="into itself"):
                merge(where, [where])
            compact(where, grace=0)
            export(where, tmp_path / f"{type(where).__name__}.jsonl")
            with Writer.open(where) as store:
                store.build_index()
                assert store.snapshot.nearest(segments("x", 3).pooled[1], 1).tolist() == [4]
                store.commit([video("d", 2)], [segments("d", 2)])
        assert rows_of(address) == rows_of(tmp_path / "library")
        assert verify(address) == []
        told, plain = info(address), info(tmp_path / "library")
        assert told["bytes"] > 10_000
        for name in ("videos", "segments", "hours", "version", "partitions", "model", "schema"):
            assert told[name] == plain[name]
        lines = [set(path.read_text().splitlines()) for path in sorted(tmp_path.glob("*.jsonl"))]
        assert len(lines[0]) == 6
        assert lines[0] == lines[1]

    def test_readers_keep_what_they_opened_until_it_is_cleared_away(self, filled: str) -> None:
        reader = Snapshot.open(filled)
        with Writer.open(filled) as writer:
            writer.commit([video("c", 4)], [segments("c", 4)], remove=["/films/a.mp4"])
        assert len(reader.tokens()) == 6
        compact(filled, grace=0)
        with pytest.raises(LibraryError, match="open it again if it was compacted"):
            reader.tokens()
        assert Snapshot.open(filled).count() == 7

    def test_what_is_damaged_or_lost_is_told(self, filled: str, proxy: Proxy) -> None:
        client = proxy.client
        head: dict[str, Any] = {"Bucket": BUCKET, "Key": filled.removeprefix(f"s3://{BUCKET}/") + "/head.json"}
        kept = client.get_object(**head)["Body"].read()
        client.put_object(Body=b"{", **head)
        with pytest.raises(LibraryError, match=r"cannot read .*head\.json"):
            Snapshot.open(filled)
        client.put_object(Body=kept.replace(b'"segments": ', b'"segments": 9'), **head)
        with pytest.raises(LibraryError, match=r"corrupt file: .*head\.json"):
            Snapshot.open(filled)
        client.delete_object(**head)
        for opening in (Snapshot.open, Writer.open):
            # Not taken for a library that was just created: that would undo all of it.
            with pytest.raises(LibraryError, match=r"head\.json is missing"):
                opening(filled)
        client.put_object(Body=kept, **head)
        assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3}

    def test_keys_of_a_profile(
        self, filled: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "keys").write_text("[films]\naws_access_key_id = AKIAOFPROFILE\naws_secret_access_key = x\n")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        monkeypatch.setenv("AWS_PROFILE", "none")
        with pytest.raises(LibraryError, match="the profile none has no credentials"):
            Snapshot.open(filled)
        monkeypatch.setenv("AWS_PROFILE", "films")
        proxy.signers.clear()
        assert len(seen(filled)) == 2
        assert proxy.signers == {"AKIAOFPROFILE"}

    def test_buckets_that_are_not_there(self, proxy: Proxy) -> None:
        with pytest.raises(LibraryError, match="bucket not found"):
            Writer.create("s3://not-there/library", STAMP)


@pytest.mark.usefixtures("_quick")
class TestBadConnections:
    def test_index_search_and_upkeep(self, address: str, proxy: Proxy, tmp_path: Path) -> None:
        colours = ("red", "blue", "green", "pink")
        write_clips(tmp_path / "v", *(f"{colour}-{side}" for colour in colours for side in ("left", "top")))
        model, options = toy_model(), {"frames": 4, "timeout": LIMIT}
        Library(tmp_path / "library", model).index(tmp_path / "v", **options)
        proxy.delay = 0.2
        with proxy.faulty(now_and_then(0.06)) as faults:
            report = Library(address, model).index(tmp_path / "v", **options)
            assert (report.indexed, report.bad, report.finished) == (8, {}, True)
            assert Library(address, model).index(tmp_path / "v", **options).unchanged == 8
            found = Library(address, model).search("red on the left", k=3).hits
            assert verify(address) == []
            compact(address)
            merge(address, [fill_like(f"{address}-other", model)])
        assert len(faults) == 5
        assert sum(faults.values()) >= 10
        expected = Library(tmp_path / "library", model).search("red on the left", k=3).hits
        assert [(hit.video.path, hit.score) for hit in found] == [(hit.video.path, hit.score) for hit in expected]
        remove(address, ["/made-up.mp4"])
        assert rows_of(address) == rows_of(tmp_path / "library")
        assert verify(address) == []

    @pytest.mark.parametrize(
        ("fault", "end"),
        [
            ("500 before", ".lance"),
            ("dropped before", "head.json"),
            # Done, but nobody is told: asking again meets one's own work.
            ("500 after", "head.json"),
            ("dropped after", "head.json"),
            ("500 after", ".manifest"),
            ("dropped after", ".manifest"),
        ],
    )
    def test_a_commit_counts_once_whatever_answer_is_lost(
        self, filled: str, proxy: Proxy, fault: Fault, end: str
    ) -> None:
        with Writer.open(filled) as store:
            before = store.snapshot.version
            with proxy.faulty(once(fault, "PUT", end)) as faults:
                store.commit([video("c", 4)], [segments("c", 4)])
            assert faults == {fault: 1}
            assert store.snapshot.version == before + 1
        assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/c.mp4": 4}
        assert verify(filled) == []

    def test_a_server_that_stays_away_is_one_sentence(
        self, filled: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "RETRIES", 1)
        monkeypatch.setattr(versions, "TRIES", 2)
        with proxy.faulty(lambda *_: "500 before"), pytest.raises(UnreachableError, match=r"500 .*; check"):
            Snapshot.open(filled)
        with Writer.open(filled) as store:
            with proxy.faulty(whenever("PUT", "500 before")), pytest.raises(UnreachableError, match=r"500 .*; check"):
                store.commit([video("c", 4)], [segments("c", 4)])
            assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
            store.commit([video("c", 4)], [segments("c", 4)])
        assert seen(filled)["/films/c.mp4"] == 4

    @pytest.mark.parametrize("denied", ["GET", "PUT"])
    def test_keys_are_neither_told_nor_kept(self, filled: str, proxy: Proxy, denied: str, capfd: Any) -> None:
        def write() -> None:
            with Writer.open(filled) as store:
                store.commit([video("c", 4)], [segments("c", 4)])

        refused = pytest.raises(RefusedError, match=r"403 Forbidden.*; check the cred")
        with proxy.faulty(whenever(denied, "403")) as faults, refused as told:
            write()
        # What is refused is not asked for again and again.
        assert faults["403"] < 5
        said = str(told.value) + "".join(capfd.readouterr())
        for key in proxy.objects(filled):
            said += proxy.client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode("latin-1")
        assert "prota-library" in said
        assert KEY_ID not in said
        assert SECRET not in said


def fill_like(address: str, model: Any) -> str:
    """A library of the same model with a video that no one has."""
    stamp = stamp_of(model, "toy")
    M, D = stamp.frames, stamp.width
    made = segments("made-up", 2)
    unit = np.full((2, M, D), D**-0.5)
    made = replace(
        made, times=np.arange(2 * M, dtype=np.float32).reshape(2, M), direction=unit.astype(np.float16),
        spread=unit.astype(np.float16) if stamp.spread else None, weight=np.ones((2, M), np.float32),
        mask=np.ones((2, M), bool), pooled=unit[:, 0].astype(np.float32),
    )  # fmt: skip
    with Writer.create(address, stamp) as store:
        store.commit([video("made-up", 2, path="/made-up.mp4")], [made])
    return address


def points(proxy: Proxy, work: Callable[[], object], number: int = max(2, POINTS // 2)) -> list[int]:
    """Some of the changes that a piece of work makes, the first and the last among them."""
    changes: list[str] = []

    def choose(method: str, path: str) -> None:
        if is_change(method, path):
            changes.append(path)

    with proxy.faulty(choose):
        work()
    return sorted({1 + round(place * (len(changes) - 1) / (number - 1)) for place in range(number)})


def second_writer(address: str) -> None:
    with Writer.open(address) as second:
        second.commit([video("second", 5)], [segments("second", 5)])


SECOND = {"/films/second.mp4": 5}


@pytest.mark.usefixtures("_quick")
class TestTwoWriters:
    """Without a lock, conflicts are noticed."""

    def test_both_commits_stand_whenever_the_second_comes(self, copies: Callable[[object], str], proxy: Proxy) -> None:
        for point in points(proxy, partial(works.commit, copies(0))):
            address = copies(point)
            with proxy.faulty(before_change(point, partial(second_writer, address))):
                works.commit(address)
            assert seen(address) == works.AFTER | SECOND
            assert verify(address) == []

    def test_what_is_disturbed_again_and_again_is_refused(
        self, copies: Callable[[object], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The first change writes the rows, before the commit is planned.
        _, *chosen = points(proxy, partial(works.commit, copies(0)))
        monkeypatch.setattr(versions, "TRIES", 1)
        for point in chosen:
            address = copies(point)
            with proxy.faulty(before_change(point, partial(second_writer, address))), pytest.raises(ConflictError):
                works.commit(address)
            assert seen(address) == works.BEFORE | SECOND
            assert verify(address) == []
            works.commit(address)
            assert seen(address) == works.AFTER | SECOND

    def test_a_slow_writer_that_was_taken_for_dead(self, filled: str, proxy: Proxy) -> None:
        """It writes its head when another has undone its work: the other notices, and begins again."""
        arrived, turn, heads = threading.Event(), threading.Lock(), [0]
        other = threading.Thread(target=second_writer, args=[filled])
        key = filled.removeprefix(f"s3://{BUCKET}/") + "/head.json"

        def tag() -> str:
            return str(proxy.client.head_object(Bucket=BUCKET, Key=key)["ETag"])

        before = tag()

        def choose(method: str, path: str) -> None:
            if method != "PUT" or not path.endswith(key):
                return
            with turn:
                heads[0] += 1
                mine = heads[0]
            if mine == 1:
                other.start()
                assert arrived.wait(LIMIT)
            elif mine == 2:
                arrived.set()
                # The first one's head arrives before this one's.
                while tag() == before:
                    time.sleep(0.01)

        writer = Writer.open(filled)
        with proxy.faulty(choose):
            writer.commit(works.NEW, [segments("x", 2), segments("c", 4)], remove=["/films/b.mp4"])
            other.join(LIMIT)
        assert heads[0] >= 3
        assert seen(filled) == works.AFTER | SECOND
        assert verify(filled) == []

    def test_rows_of_a_commit_that_never_finished_do_not_slip_in(
        self, copies: Callable[[object], str], proxy: Proxy
    ) -> None:
        """Lance merges two that append at once: the second version holds the rows of both."""
        for point in points(proxy, partial(works.commit, copies(0))):
            address, dying = copies(point), threading.Event()
            second = Writer.open(address)

            def half(second: Writer = second, dying: threading.Event = dying) -> None:
                dying.set()
                with pytest.raises(RefusedError):
                    second.commit([video("second", 5)], [segments("second", 5)])
                dying.clear()

            interrupt = before_change(point, half)

            def choose(
                method: str, path: str, dying: threading.Event = dying, interrupt: Chooser = interrupt
            ) -> Fault | None:
                if dying.is_set():
                    return "403" if method == "PUT" and path.endswith("head.json") else None
                return interrupt(method, path)

            with proxy.faulty(choose):
                works.commit(address)
            assert seen(address) == works.AFTER
            assert verify(address) == []

    def test_compacting_beside_a_writer(self, filled: str, proxy: Proxy) -> None:
        with proxy.faulty(before_first("head.json", partial(second_writer, filled))):
            compact(filled)
        assert seen(filled) == works.BEFORE | SECOND
        assert verify(filled) == []
        # What a worker wrote for another writer is left alone.
        texts = write_segments(filled, STAMP, [(video("w", 2), segments("w", 2))])
        compact(filled, grace=0)
        with Writer.open(filled) as writer:
            writer.adopt([video("w", 2)], texts, {content("w")})
        assert seen(filled)["/films/w.mp4"] == 2
        assert verify(filled) == []

    def test_rows_that_come_while_files_are_joined_are_noticed(self, filled: str) -> None:
        location = Location.of(filled)
        _, _, draft = versions.roll_back(location)
        newest = versions.dataset(location, "segments")

        def disturbed(dataset: lance.LanceDataset) -> None:
            newest.delete("index = 0")
            dataset.create_index("pooled", "IVF_FLAT", metric="cosine", num_partitions=1)

        with pytest.raises(ConflictError):
            draft.tidy(disturbed)


def test_two_that_create_and_two_that_write(address: str) -> None:
    problems: list[BaseException] = []
    names = ("abc", "xyz")

    def work(mine: str) -> None:
        try:
            try:
                store = Writer.create(address, STAMP)
            except LibraryError:
                store = Writer.open(address)
            for name in mine:
                store.commit([video(name, 2)], [segments(name, 2)])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=[mine]) for mine in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert problems == []
    assert seen(address) == {f"/films/{name}.mp4": 2 for name in "abcxyz"}
    assert verify(address) == []


@pytest.mark.usefixtures("_quick")
class TestDeadWriters:
    @pytest.mark.parametrize("work", [works.commit, works.adopt], ids=lambda work: str(work.__name__))
    def test_all_or_nothing_whenever_it_dies(
        self, copies: Callable[[object], str], proxy: Proxy, work: Callable[[str], None]
    ) -> None:
        for point in points(proxy, partial(work, copies(0))):
            address = copies(point)
            with proxy.faulty(from_change(point)), pytest.raises(RefusedError):
                work(address)
            assert seen(address) == works.BEFORE
            assert verify(address) == []
            work(address)
            assert seen(address) == works.AFTER
            assert verify(address) == []

    def test_creating_is_all_or_nothing(self, address: str, proxy: Proxy) -> None:
        for point in points(proxy, lambda: fill(f"{address}-0", "")):
            with proxy.faulty(from_change(point)), pytest.raises(RefusedError):
                fill(f"{address}-{point}", "")
            try:
                assert Snapshot.open(f"{address}-{point}").count() == 0
            except LibraryError:
                Writer.create(f"{address}-{point}", STAMP).close()
            with Writer.open(f"{address}-{point}") as writer:
                writer.commit([video("a", 2)], [segments("a", 2)])
            assert seen(f"{address}-{point}") == {"/films/a.mp4": 2}

    def test_kill_9_in_the_middle_loses_nothing(self, address: str, proxy: Proxy) -> None:
        Writer.create(address, STAMP).close()
        with python("-c", WRITER, address) as process:
            assert process.stdout is not None
            last = [int(process.stdout.readline()) for _ in range(3)][-1]
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            last = int(rest[-1]) if rest else last
        counts = seen(address)
        assert verify(address) == []
        assert set(counts.values()) == {4}
        assert f"/films/{last}.mp4" in counts
        with Writer.open(address) as store:
            store.commit([video("z", 2)], [segments("z", 2)], remove=list(counts))
        assert seen(address) == {"/films/z.mp4": 2}
        assert verify(address) == []


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path) -> None:
    full = OSError("LanceError(IO): No space left on device (os error 28), /rust/lance-file/src/writer.rs:254:9")
    told = Folder(tmp_path / "lib").problem(full)
    assert isinstance(told, LibraryError)
    other = OSError("something else")
    assert Folder(tmp_path).problem(other) is other
