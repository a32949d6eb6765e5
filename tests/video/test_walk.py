"""Every file that is meant, once, and nothing that could stop the walk."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from prota.video import walk as module
from prota.video.timeline import DecodeError
from prota.video.walk import VIDEO_EXTENSIONS, FoundFile, Unreadable, below, content_id, walk
from tests.processes import not_root, posix


def put(path: Path, content: bytes = b"video") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(folder: Path, paths: list[Path] | None = None, pictures: bool = False) -> list[str]:
    """What a walk finds, relative to the folder; what it reports, with the reason."""
    found = walk(paths or [folder], pictures)
    return [
        str(item.path.relative_to(folder)) + (f": {item.reason}" if isinstance(item, Unreadable) else "")
        for item in found
    ]


def test_folders_are_walked_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.mp4", "a.MKV", "c/z.webm", "c/d/y.avi", "a/x.mov", "notes.txt", "c/pic.jpg", "noextension"):
        put(tmp_path / name)
    assert names(tmp_path) == ["a.MKV", "b.mp4", "a/x.mov", "c/z.webm", "c/d/y.avi"]
    assert names(tmp_path, [tmp_path / "c", tmp_path]) == ["c/z.webm", "c/d/y.avi", "a.MKV", "b.mp4", "a/x.mov"]


def test_a_found_file_tells_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.mp4", b"12345")
    os.utime(path, ns=(1, 1_234_567_890_123_456_789))
    monkeypatch.chdir(tmp_path)
    expected = FoundFile(path, 5, 1_234_567_890_123_456_789)
    assert list(walk([Path("a.mp4")])) == list(walk([Path()])) == [expected]
    put(tmp_path / "elsewhere" / "deep" / "file")
    (tmp_path / "short").symlink_to(tmp_path / "elsewhere" / "deep")
    # Two dots lead from where a link leads, not from where it lies.
    assert list(walk([Path("short/../../a.mp4")])) == [expected]


def test_the_known_extensions_are_containers() -> None:
    assert {"mp4", "mkv", "webm", "mov", "avi", "mpg", "wmv", "flv", "gif", "h264", "h265", "mts"} <= VIDEO_EXTENSIONS
    assert not VIDEO_EXTENSIONS & {"", "null", "txt", "jpg", "png", "mp3", "wav", "ogg", "csv", "srt", "lance"}
    assert all(extension == extension.lower() and "." not in extension for extension in VIDEO_EXTENSIONS)


def test_a_file_that_is_named_is_taken_whatever_its_name(tmp_path: Path) -> None:
    for name in ("movie.bin", ".hidden.mp4", ".folder/a.mp4", ".folder/.b.mp4", "code.ts"):
        put(tmp_path / name)
    assert names(tmp_path) == []
    given = [tmp_path / name for name in ("movie.bin", ".hidden.mp4", ".folder", "code.ts")]
    assert names(tmp_path, given) == ["movie.bin", ".hidden.mp4", ".folder/a.mp4", "code.ts"]


def test_pictures_are_found_but_not_the_previews_of_videos(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.mp4", "b.jpg", "b.mp4.png", "b.x.webp", "c/b.jpeg", "d.gif", ".e.png", "f.tiff", "g.mov"):
        put(tmp_path / name)
    (tmp_path / "g.png").symlink_to("a.JPG")
    (tmp_path / "h.webp").symlink_to("/nowhere")
    (tmp_path / "i.png").symlink_to("c/b.jpeg")
    assert names(tmp_path) == ["b.mp4", "d.gif", "g.mov"]
    found = names(tmp_path, pictures=True)
    assert found == ["a.JPG", "b.mp4", "b.x.webp", "d.gif", "g.mov", "c/b.jpeg", "h.webp: broken link"]
    # What is named itself is meant, unless no picture is.
    given = [tmp_path / "b.jpg", tmp_path / ".e.png"]
    assert names(tmp_path, given, pictures=True) == ["b.jpg", ".e.png"]
    assert names(tmp_path, given) == []


def test_typescript_is_not_taken_for_a_recording(tmp_path: Path) -> None:
    put(tmp_path / "index.ts", b"export const greeting = 'h\xc3\xa9'\n" * 100)
    put(tmp_path / "tape.ts", b"G@\0\x10" + b"\xff" * 184)
    assert names(tmp_path) == ["tape.ts"]


def test_each_file_comes_once_under_its_own_name(tmp_path: Path) -> None:
    put(tmp_path / "m.mp4")
    put(tmp_path / "z" / "x.mp4")
    os.link(tmp_path / "m.mp4", tmp_path / "n.mp4")
    (tmp_path / "a.mp4").symlink_to("m.mp4")
    (tmp_path / "b").symlink_to("z", target_is_directory=True)
    assert names(tmp_path) == ["m.mp4", "z/x.mp4"]
    assert names(tmp_path, [tmp_path, tmp_path / "a.mp4", tmp_path]) == ["m.mp4", "z/x.mp4"]
    assert names(tmp_path, [tmp_path / "a.mp4", tmp_path / "b"]) == ["a.mp4", "b/x.mp4"]


def test_links_are_followed_out_of_the_folder(tmp_path: Path) -> None:
    put(tmp_path / "disk" / "films" / "x.mp4")
    put(tmp_path / "disk" / "y.mp4")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "films").symlink_to(tmp_path / "disk" / "films")
    (tmp_path / "home" / "y.mp4").symlink_to(tmp_path / "disk" / "y.mp4")
    (tmp_path / "home" / "y.txt").symlink_to(tmp_path / "disk" / "y.mp4")
    assert names(tmp_path / "home") == ["films/x.mp4", "y.mp4"]


def test_loops_of_links_end(tmp_path: Path) -> None:
    put(tmp_path / "a" / "x.mp4")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    found = names(tmp_path)
    assert found[0] == "a/x.mp4"
    assert sorted(line.split(": ")[0] for line in found[1:]) == ["a/self", "one", "two"]
    assert all("Too many levels of symbolic links" in line for line in found[1:])


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "usb").symlink_to("/nowhere/usb")
    (tmp_path / "x.mp4").symlink_to("/nowhere/x.mp4")
    (tmp_path / "notes.txt").symlink_to("/nowhere/notes.txt")
    assert names(tmp_path) == ["usb: broken link", "x.mp4: broken link"]
    assert names(tmp_path, [tmp_path / "gone"]) == ["gone: no such file or folder"]


@posix
def test_special_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    os.mkfifo(tmp_path / "pipe.ts")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.mkv")
        reported = [f"{name}: not a regular file" for name in ("pipe.mp4", "pipe.ts", "socket.mkv")]
        assert names(tmp_path) == reported
    assert names(tmp_path, [tmp_path / "pipe"]) == ["pipe: not a regular file"]
    assert [type(item) for item in walk([Path("/dev/null")])] == [Unreadable]
    for name in ("pipe", "/dev/zero"):
        with pytest.raises(DecodeError, match="not a regular file"):
            content_id(Path(name))


@not_root
def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    put(tmp_path / "closed" / "x.mp4")
    put(tmp_path / "secret.mp4").chmod(0)
    put(tmp_path / "z.mp4")
    (tmp_path / "closed").chmod(0)
    try:
        assert names(tmp_path) == [
            "secret.mp4: cannot read: Permission denied",
            "z.mp4",
            "closed: cannot read the folder: Permission denied",
        ]
        with pytest.raises(DecodeError, match=r"secret\.mp4: cannot read: Permission denied"):
            content_id(tmp_path / "secret.mp4")
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_what_the_system_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root, who may read everything but a broken disk."""
    put(tmp_path / "closed" / "x.mp4")
    put(tmp_path / "secret.mp4")
    put(tmp_path / "z.mp4")
    scandir, access = os.scandir, os.access

    def refuse(path: Path) -> object:
        if path.name == "closed":
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "secret.mp4" and access(path, mode))
    assert names(tmp_path) == [
        "secret.mp4: cannot read: Permission denied",
        "z.mp4",
        "closed: cannot read the folder: Input/output error",
    ]


def test_names_that_cannot_be_written_down_are_told(tmp_path: Path) -> None:
    put(tmp_path / "ok.mp4")
    for name in (b"caf\xe9.mp4", b"d\xe9/x.mp4"):
        put(tmp_path / os.fsdecode(name))
    found = list(walk([tmp_path]))
    assert [str(item.path.relative_to(tmp_path)) for item in found] == ["caf\ufffd.mp4", "ok.mp4", "d\ufffd"]
    assert [getattr(item, "reason", "") for item in found] == [
        "the name is not UTF-8; rename it",
        "",
        "the name of the folder is not UTF-8; rename it",
    ]


def test_deep_folders_are_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    Path("x.mp4").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    found = list(walk([tmp_path]))
    assert [type(item) for item in found] == [FoundFile]
    # Taken away here, because whoever cleans up afterwards may do it by recursion.
    found[0].path.unlink()
    os.removedirs(found[0].path.parent)
    tmp_path.mkdir(parents=True, exist_ok=True)


def test_the_content_names_a_file(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    first, second = put(tmp_path / "a.mp4", content), put(tmp_path / "b.mp4", content)
    assert content_id(first) == content_id(second) == hashlib.sha256(content).hexdigest()
    assert content_id(put(tmp_path / "c.mp4", b"")) == hashlib.sha256(b"").hexdigest()
    with pytest.raises(DecodeError, match=r"two lines/gone\.mp4: cannot read: No such file"):
        content_id(tmp_path / "two\nlines" / "gone.mp4")
    with pytest.raises(DecodeError, match="cannot read: "):
        content_id(tmp_path)


@pytest.mark.parametrize("change", ["grows", "is touched", "is replaced", "is removed"])
def test_a_file_that_changes_meanwhile_is_noticed(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.mp4")
    other = put(tmp_path / "other", b"video")
    real = hashlib.file_digest

    def digest(*arguments: object) -> object:
        if change == "grows":
            with path.open("ab") as file:
                file.write(b"more")
        elif change == "is touched":
            os.utime(path, ns=(5, 5))
        elif change == "is replaced":
            status = path.stat()
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
            other.replace(path)
        else:
            path.unlink()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module.hashlib, "file_digest", digest)
    with pytest.raises(DecodeError, match=r"changed while being read|No such file") as caught:
        content_id(path)
    assert "\n" not in str(caught.value)


def test_what_links_lead_to_does_not_lie_below(tmp_path: Path) -> None:
    root = tmp_path / "root"
    own, other = put(root / "a.mp4"), put(tmp_path / "root-beside" / "b.mp4")
    (root / "link.mp4").symlink_to(other)
    (root / "folder").symlink_to(other.parent)
    (tmp_path / "way-in").symlink_to(root)
    folders = [os.path.realpath(root)]
    assert below(own, folders)
    assert below(root, folders)
    assert below(tmp_path / "way-in" / "a.mp4", folders)
    assert below(root / "not-there.mp4", folders)
    assert below("/anything", ["/"])
    for path in (other, root / "link.mp4", root / "folder" / "b.mp4", root / ".." / "root-beside", tmp_path):
        assert not below(path, folders)
    assert not below(own, [])
