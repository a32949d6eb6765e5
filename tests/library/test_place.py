"""Libraries on an object store: as in a folder, over a bad connection, and with no lock between writers."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from prota.library import folder as folder_module
from prota.library import place as place_module
from prota.library import store as store_module
from prota.library.encoding import stamp_of
from prota.library.folder import Draft
from prota.library.fragments import write_segments
from prota.library.indexing import IndexOptions
from prota.library.library import Library
from prota.library.place import Bucket, Folder, Place
from prota.library.problems import DisturbedError, RefusedError, UnreachableError
from prota.library.records import LibraryError
from prota.library.segments import SegmentPlan
from prota.library.store import Store
from prota.library.upkeep import compact, export, info, merge, remove, verify
from tests.library.object_store import BUCKET, KEY_ID, SECRET, Fault, Proxy, now_and_then, once, serving, whenever
from tests.library.small_library import STAMP, content, fill, seen, segments, video
from tests.library.test_fragments import rows_of
from tests.library.test_store import WRITER, Died, dying, dying_at
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
def filled(template: str, address: str, proxy: Proxy) -> str:
    """A library with two videos at the test's own place."""
    old, new = (name.removeprefix(f"s3://{BUCKET}/") for name in (template, address))
    for key in proxy.objects(template):
        proxy.client.copy_object(Bucket=BUCKET, Key=key.replace(old, new, 1), CopySource=f"{BUCKET}/{key}")
    return address


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PAUSE", 0.02)
    monkeypatch.setattr(place_module, "PAUSE", 0.02)
    monkeypatch.setattr(folder_module, "PATIENCE", 0.0)


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
        place = Place.of(given)
        assert isinstance(place, Bucket)
        assert (str(place), str(place.absolute())) == (name, name)
        assert place.file("head.json") == f"{name}/head.json"
        assert str(pickle.loads(pickle.dumps(place))) == name
        assert place.same(Place.of(name))
        assert not place.same(Place.of(f"{name}/c"))
        assert Place.of(place) is place

    @pytest.mark.parametrize("given", ["library", "./a:b/c", "/films/s3", "a\nb", Path("x")])
    def test_folders(self, given: str | Path) -> None:
        place = Place.of(given)
        assert isinstance(place, Folder)
        assert place.path == Path(given)
        assert place.same(place.absolute())
        assert not place.same(Place.of("s3://bucket"))

    @pytest.mark.parametrize(
        "given",
        ["ftp://host/x", "http://host/x", "s3://", "s3://key:secret@bucket/x", "s3://b/x?secret=1", "az://c/#secret"],
    )
    def test_others_are_refused_without_repeating_a_secret(self, given: str) -> None:
        with pytest.raises(LibraryError, match=r"give a folder, or an address|keys belong in the environment") as told:
            Place.of(given)
        assert "secret" not in str(told.value)

    def test_without_the_client_it_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(place_module, "find_spec", lambda name: None)
        with pytest.raises(LibraryError, match="pip install obstore boto3"):
            Store.open("s3://bucket/x")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        monkeypatch.setenv("AWS_PROFILE", "films")
        monkeypatch.setattr(place_module, "find_spec", lambda name: name == "obstore" or None)
        with pytest.raises(LibraryError, match="the profile films needs boto3 to be read"):
            Store.open("s3://bucket/x")


class TestAsInAFolder:
    def test_everything_a_library_does(self, address: str, tmp_path: Path) -> None:
        with pytest.raises(LibraryError, match=f"no library at {address}: make one"):
            Store.open(address)
        for where in (address, tmp_path / "library"):
            fill(where, "ab")
            with pytest.raises(LibraryError, match="holds a library already"):
                Store.create(where, STAMP)
            remove(where, ["/films/b.mp4"])
            other = f"{address}-other" if where == address else tmp_path / "other"
            merge(where, [fill(other, "ax")])
            with pytest.raises(LibraryError, match="cannot be merged into itself"):
                merge(where, [where])
            compact(where, grace=0)
            export(where, tmp_path / f"{type(where).__name__}.jsonl")
            with Store.open(where, write=True) as store:
                store.build_index()
                assert store.nearest(segments("x", 3).pooled[1], 1).tolist() == [4]
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
        reader = Store.open(filled)
        with Store.open(filled, write=True) as writer:
            writer.commit([video("c", 4)], [segments("c", 4)], remove=["/films/a.mp4"])
        assert len(reader.tokens()) == 6
        compact(filled, grace=0)
        with pytest.raises(LibraryError, match="open it again if it was compacted"):
            reader.tokens()
        assert Store.open(filled).count() == 7

    def test_what_is_damaged_or_lost_is_told(self, filled: str, proxy: Proxy) -> None:
        client = proxy.client
        head: dict[str, Any] = {"Bucket": BUCKET, "Key": filled.removeprefix(f"s3://{BUCKET}/") + "/head.json"}
        kept = client.get_object(**head)["Body"].read()
        client.put_object(Body=b"{", **head)
        with pytest.raises(LibraryError, match=r"head\.json cannot be read"):
            Store.open(filled)
        client.put_object(Body=kept.replace(b'"segments": ', b'"segments": 9'), **head)
        with pytest.raises(LibraryError, match=r"lacks what its head\.json names"):
            Store.open(filled)
        client.delete_object(**head)
        for write in (False, True):
            # Not taken for a library that was just created: that would undo all of it.
            with pytest.raises(LibraryError, match=r"has lost its head\.json"):
                Store.open(filled, write=write)
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
        with pytest.raises(LibraryError, match="the profile none gives no keys"):
            Store.open(filled)
        monkeypatch.setenv("AWS_PROFILE", "films")
        proxy.signers.clear()
        assert len(seen(filled)) == 2
        assert proxy.signers == {"AKIAOFPROFILE"}

    def test_buckets_that_are_not_there(self, proxy: Proxy) -> None:
        with pytest.raises(LibraryError, match="there is no such bucket: make it first"):
            Store.create("s3://not-there/library", STAMP)


@pytest.mark.usefixtures("_quick")
class TestBadConnections:
    def test_index_search_and_upkeep(self, address: str, proxy: Proxy, tmp_path: Path) -> None:
        colours = ("red", "blue", "green", "pink")
        write_clips(tmp_path / "v", *(f"{colour}-{side}" for colour in colours for side in ("left", "top")))
        model, options = toy_model(), IndexOptions(SegmentPlan(4), timeout=LIMIT)
        Library.open(tmp_path / "library", model).index(tmp_path / "v", options)
        proxy.delay = 0.2
        with proxy.faulty(now_and_then(0.06)) as faults:
            report = Library.open(address, model).index(tmp_path / "v", options)
            assert (report.indexed, report.bad, report.finished) == (8, {}, True)
            assert Library.open(address, model).index(tmp_path / "v", options).unchanged == 8
            found = Library.open(address, model).search("red on the left", k=3, everything=True)
            assert verify(address) == []
            compact(address)
            merge(address, [fill_like(f"{address}-other", model)])
        assert len(faults) == 5
        assert sum(faults.values()) >= 10
        expected = Library.open(tmp_path / "library", model).search("red on the left", k=3, everything=True)
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
        with Store.open(filled, write=True) as store:
            before = store.version
            with proxy.faulty(once(fault, "PUT", end)) as faults:
                store.commit([video("c", 4)], [segments("c", 4)])
            assert faults == {fault: 1}
            assert store.version == before + 1
        assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/c.mp4": 4}
        assert verify(filled) == []

    def test_a_server_that_stays_away_is_one_sentence(
        self, filled: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(place_module, "RETRIES", 1)
        monkeypatch.setattr(store_module, "TRIES", 2)
        with proxy.faulty(lambda *_: "500 before"), pytest.raises(UnreachableError, match=r"500 .*: see to"):
            Store.open(filled)
        with Store.open(filled, write=True) as store:
            with proxy.faulty(whenever("PUT", "500 before")), pytest.raises(UnreachableError, match=r"500 .*: see to"):
                store.commit([video("c", 4)], [segments("c", 4)])
            assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
            store.commit([video("c", 4)], [segments("c", 4)])
        assert seen(filled)["/films/c.mp4"] == 4

    @pytest.mark.parametrize("denied", ["GET", "PUT"])
    def test_keys_are_neither_told_nor_kept(self, filled: str, proxy: Proxy, denied: str, capfd: Any) -> None:
        def write() -> None:
            with Store.open(filled, write=True) as store:
                store.commit([video("c", 4)], [segments("c", 4)])

        refused = pytest.raises(RefusedError, match=r"403 Forbidden.*: see to the keys")
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
    with Store.create(address, stamp) as store:
        store.commit([video("made-up", 2, path="/made-up.mp4")], [made])
    return address


NEW = [video("x", 2, path="/films/a.mp4"), video("c", 4)]
STEPS = [
    (Draft, "delete", 1),
    (Draft, "append", 1),
    (Draft, "delete", 2),
    (Draft, "append", 2),
    (store_module, "write_head", 1),
]


def change(store: Store) -> None:
    store.commit(NEW, [segments("x", 2), segments("c", 4)], remove=["/films/b.mp4"])


@pytest.mark.usefixtures("_quick")
class TestTwoWriters:
    """Nobody can be kept away, so whoever comes between is noticed."""

    def between(self, patch: pytest.MonkeyPatch, place: Any, name: str, nth: int, act: Callable[[], None]) -> None:
        """Have this happen once, before the n-th call."""
        real, calls = getattr(place, name), 0

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                act()
            return real(*arguments, **named)

        patch.setattr(place, name, call)

    def other(self, address: str) -> Callable[[], None]:
        def act() -> None:
            with Store.open(address, write=True) as second:
                second.commit([video("second", 5)], [segments("second", 5)])

        return act

    @pytest.mark.parametrize(("place", "name", "nth"), [STEPS[3], STEPS[4]], ids=lambda value: str(value)[:15])
    def test_both_commits_stand(
        self, filled: str, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, nth: int
    ) -> None:
        address, first = filled, Store.open(filled, write=True)
        with monkeypatch.context() as patch:
            # The second one's calls are counted too, but it comes only once.
            self.between(patch, place, name, nth, self.other(address))
            change(first)
        assert seen(address) == {"/films/a.mp4": 2, "/films/c.mp4": 4, "/films/second.mp4": 5}
        assert verify(address) == []
        assert {record.path for record in first.videos()} == set(seen(address))

    @pytest.mark.parametrize(
        ("place", "name", "nth"), [STEPS[0], STEPS[2], STEPS[4]], ids=lambda value: str(value)[:15]
    )
    def test_who_is_disturbed_again_and_again_is_told(
        self, filled: str, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, nth: int
    ) -> None:
        address, first = filled, Store.open(filled, write=True)
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "TRIES", 1)
            self.between(patch, place, name, nth, self.other(address))
            with pytest.raises(LibraryError, match=r"written by another process too: .* kept; run this again"):
                change(first)
        assert seen(address) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/second.mp4": 5}
        assert verify(address) == []
        change(first)
        assert seen(address) == {"/films/a.mp4": 2, "/films/c.mp4": 4, "/films/second.mp4": 5}

    def test_a_slow_writer_that_was_taken_for_dead(self, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It writes its head while another undoes its work: the other sees it, and begins again."""
        address, first = filled, Store.open(filled, write=True)
        real, written = folder_module.write_head, []

        def of_first(place: Place, head: Any) -> Any:
            monkeypatch.setattr(store_module, "write_head", real)
            monkeypatch.setattr(folder_module, "write_head", lambda *given: of_second(head, *given))
            self.other(address)()
            return written[0]

        def of_second(head: Any, place: Place, undone: Any) -> Any:
            monkeypatch.setattr(folder_module, "write_head", real)
            written.append(real(place, head))
            return real(place, undone)

        monkeypatch.setattr(store_module, "write_head", of_first)
        change(first)
        assert len(written) == 1
        assert seen(address) == {"/films/a.mp4": 2, "/films/c.mp4": 4, "/films/second.mp4": 5}
        assert verify(address) == []

    def test_rows_of_one_who_never_finished_do_not_slip_in(self, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lance joins two that append at once: the second version holds the rows of both."""
        first, second = Store.open(filled, write=True), Store.open(filled, write=True)

        def half() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(store_module, "write_head", dying(store_module.write_head, "before"))
                with pytest.raises(Died):
                    second.commit([video("second", 5)], [segments("second", 5)])

        with monkeypatch.context() as patch:
            self.between(patch, Draft, "append", 1, half)
            first.commit([video("c", 4)], [segments("c", 4)])
        assert seen(filled) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/c.mp4": 4}
        assert verify(filled) == []

    def test_compacting_beside_a_writer(self, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
        address = filled
        with monkeypatch.context() as patch:
            self.between(patch, store_module, "write_head", 1, self.other(address))
            compact(address)
        assert seen(address) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/second.mp4": 5}
        assert verify(address) == []
        # What a worker wrote for a writer somewhere is left alone, and so is what that one began.
        texts = write_segments(address, STAMP, [(video("w", 2), segments("w", 2))])
        compact(address, grace=0)
        with Store.open(address, write=True) as store:
            store.adopt([video("w", 2)], texts, {content("w")})
        assert seen(address)["/films/w.mp4"] == 2
        assert verify(address) == []

    def test_rows_that_come_while_files_are_joined_are_noticed(self, filled: str) -> None:
        place = Place.of(filled)
        _, _, segment_set = folder_module.take_back(place)
        newest = folder_module.dataset(place, "segments")

        def disturbed(dataset: lance.LanceDataset) -> None:
            newest.delete("index = 0")
            dataset.create_index("pooled", "IVF_FLAT", metric="cosine", num_partitions=1)

        with pytest.raises(DisturbedError):
            segment_set.tidy(disturbed)


def test_two_that_create_and_two_that_write(address: str) -> None:
    problems: list[BaseException] = []
    names = ("abc", "xyz")

    def work(mine: str) -> None:
        try:
            try:
                store = Store.create(address, STAMP)
            except LibraryError:
                store = Store.open(address, write=True)
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
    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize(("place", "name", "nth"), [STEPS[1], STEPS[4]], ids=lambda value: str(value)[:15])
    def test_all_or_nothing(
        self, filled: str, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, nth: int, moment: str
    ) -> None:
        address, store = filled, Store.open(filled, write=True)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, dying_at(nth, getattr(place, name), moment))
            with pytest.raises(Died):
                change(store)
        whole = (name, moment) == ("write_head", "after")
        after = {"/films/a.mp4": 2, "/films/c.mp4": 4}
        assert seen(address) == (after if whole else {"/films/a.mp4": 3, "/films/b.mp4": 3})
        with Store.open(address, write=True) as next_one:
            change(next_one)
        assert seen(address) == after
        assert verify(address) == []

    def test_creating_can_be_cut_off(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "write", dying(Bucket.write, "before"))
            with pytest.raises(Died):
                Store.create(address, STAMP)
        with pytest.raises(LibraryError, match="no library at"):
            Store.open(address)
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "write_head", dying(folder_module.write_head, "before"))
            with pytest.raises(Died):
                Store.create(address, STAMP)
        assert Store.open(address).count() == 0
        with Store.open(address, write=True) as store:
            store.commit([video("a", 2)], [segments("a", 2)])
        assert seen(address) == {"/films/a.mp4": 2}

    def test_kill_9_in_the_middle_loses_nothing(self, address: str, proxy: Proxy) -> None:
        Store.create(address, STAMP).close()
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
        with Store.open(address, write=True) as store:
            store.commit([video("z", 2)], [segments("z", 2)], remove=list(counts))
        assert seen(address) == {"/films/z.mp4": 2}
        assert verify(address) == []


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path) -> None:
    full = OSError("LanceError(IO): No space left on device (os error 28), /rust/lance-file/src/writer.rs:254:9")
    told = Folder(tmp_path / "lib").problem(full)
    assert isinstance(told, LibraryError)
    assert str(told) == f"no room is left for {tmp_path / 'lib'}: make some, and give the same command again"
    other = OSError("something else")
    assert Folder(tmp_path).problem(other) is other
