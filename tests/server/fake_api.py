"""A server that answers as prota.server does, out of made-up clips: for work on the page, and for its tests.

``python -m tests.server.fake_api [PORT]`` shows the page on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import av
import numpy as np
from PIL import Image, ImageDraw

STATIC = Path(__file__).resolve().parents[2] / "prota" / "server" / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
SEGMENT, STEP, FPS = 8.0, 4.0, 8


@dataclass
class Clip:
    """A video of the made-up library: a disc that wanders over a colour; of 0 seconds, a picture."""

    title: str
    caption: str
    folder: str
    seconds: float
    colour: tuple[int, int, int]
    modified: str = "2025-06-01"
    path: Path = Path()

    @property
    def id(self) -> str:
        return hashlib.sha256(self.title.encode()).hexdigest()

    @property
    def kind(self) -> str:
        return "video" if self.seconds else "picture"

    def picture(self, second: float, size: tuple[int, int] = (320, 180)) -> Image.Image:
        width, height = size
        image = Image.new("RGB", size, self.colour)
        draw = ImageDraw.Draw(image)
        x = int(width * (0.15 + 0.7 * second / (self.seconds or 1)))
        draw.rectangle((0, height * 0.7, width, height), fill=tuple(value // 2 for value in self.colour))
        draw.ellipse((x - 30, height // 2 - 30, x + 30, height // 2 + 30), fill=(250, 240, 220))
        draw.text((x - 12, height // 2 - 6), f"{second:.1f}", fill=(20, 20, 20))
        return image

    def write(self, folder: Path) -> None:
        """VP8 in WebM: every Chromium plays it, with and without licensed codecs."""
        if not self.seconds:
            self.path = folder / f"{self.id[:12]}.png"
            self.picture(0).save(self.path)
            return
        self.path = folder / f"{self.id[:12]}.webm"
        with av.open(str(self.path), "w") as file:
            stream = file.add_stream("libvpx", rate=FPS)
            stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 320, 180, "yuv420p", 200_000
            stream.options = {"cpu-used": "8", "deadline": "realtime", "g": "8"}
            for n in range(int(self.seconds * FPS)):
                frame = av.VideoFrame.from_ndarray(np.asarray(self.picture(n / FPS)), format="rgb24")
                file.mux(stream.encode(frame))
            file.mux(stream.encode())


CLIPS = [
    Clip("harbour at dawn.mp4", "boats in a harbour at dawn", "travel", 24, (76, 120, 150)),
    Clip("red car.mp4", "a red car drives along a road", "cars", 16, (150, 60, 50)),
    Clip("<script>alert(1)</script>.mp4", "a dog runs on a beach", "travel", 12, (190, 160, 100)),
    Clip("kitchen.mp4", "a woman cuts vegetables in a kitchen", "home", 40, (90, 130, 80), "2024-01-10"),
    Clip("a very long name of a file that nobody would ever type but cameras do 20240101.mp4", "a dog in a garden",
         "home/2024/garden", 9, (60, 110, 70), "2024-02-01"),
]  # fmt: skip


PHOTO = Clip("sunset.png", "a sunset over the sea", "photos", 0, (200, 120, 60))


@dataclass
class World:
    """What the server knows; tests change it while it runs."""

    clips: list[Clip] = field(default_factory=list)
    state: str = "ready"
    token: str = ""
    version: int = 1
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    partial: bool = False
    damaged: int = 0
    hint: str | None = None
    alone: bool = False
    """Whether nothing looks like anything else."""
    allow: tuple[str, ...] = ("/videos",)
    examples: tuple[str, ...] = ("a red car", "a dog runs on a beach")
    bad: dict[str, str] = field(default_factory=dict)
    """Files that could not be indexed, with the reason."""
    removed: list[str] = field(default_factory=list)
    """Files that were removed, by id."""

    @property
    def rows(self) -> list[tuple[Clip, float, float]]:
        found = []
        for clip in self.clips:
            start = 0.0
            while True:
                found.append((clip, start, min(start + SEGMENT, clip.seconds)))
                if start + SEGMENT >= clip.seconds:
                    break
                start += STEP
        return found

    def moment(self, row: int, relevance: float) -> dict[str, Any]:
        clip, start, end = self.rows[row]
        return {
            "segment": row, "video": clip.id, "kind": clip.kind, "title": clip.title, "folder": clip.folder,
            "start": start, "end": end, "best": (start + end) / 2, "duration": clip.seconds,
            "score": 0.2 + relevance / 2, "probability": round(relevance, 3), "thumbnail": f"/api/v1/thumbnails/{row}",
        }  # fmt: skip

    def relevance(self, row: int, query: str) -> float:
        clip, start, end = self.rows[row]
        words = set(re.findall(r"\w+", query.lower())) - {"a", "the", "in", "on", "an"}
        shared = len(words & set(re.findall(r"\w+", clip.caption)))
        middle = abs((start + end) / 2 - clip.seconds / 2) / (clip.seconds or 1)
        return 0.0 if not words else min(0.97, shared / len(words) * (0.97 - 0.5 * middle) + 0.02)

    def answer(self, query: str, found: list[tuple[int, float]], k: int = 24) -> dict[str, Any]:
        moments = [self.moment(row, value) for row, value in sorted(found, key=lambda pair: -pair[1])]
        good = [moment for moment in moments if moment["probability"] >= 0.1]
        return {
            "query": query, "cut": len(query) > 300, "partial": self.partial, "damaged": self.damaged,
            "version": self.version, "no_good_match": not good, "hint": self.hint, "took_ms": 7.4, "moments": good[:k],
            "weaker": [one for one in moments if one not in good][:24],
        }  # fmt: skip

    def search(self, given: dict[str, str]) -> dict[str, Any]:
        def passes(clip: Clip) -> bool:
            return (
                float(given.get("min_duration", 0)) <= clip.seconds <= float(given.get("max_duration", 1e9))
                and clip.folder.startswith(given.get("folder", ""))
                and clip.kind == given.get("kind", clip.kind)
                and given.get("after", "0") <= clip.modified <= given.get("before", "9")
            )

        rows = [row for row, (clip, _, _) in enumerate(self.rows) if passes(clip)]
        found = [(row, self.relevance(row, given["q"])) for row in rows]
        return self.answer(given["q"], found, int(given["k"]))

    def explain(self, query: str, row: int) -> dict[str, Any]:
        _, start, end = self.rows[row]
        words, draw = query.split(), np.random.default_rng(row)
        frames = [start + (end - start) * (n + 0.5) / 8 for n in range(8 if end else 1)]
        similar = draw.uniform(-0.1, 0.7, (len(words), len(frames))).round(3)
        chosen = [len(word) > 2 for word in words]
        heat = draw.uniform(0, 1, (len(words), len(frames))).round(3).tolist()
        return {
            "score": 0.612, "sentence": f"“{words[-1]}” matches 0:{start:02.0f}–0:{end:02.0f}", "start": start,
            "end": (start + end) / 2, "rest": {"contribution": 0.01, "weight": 0.1},
            "words": [{"text": word, "contribution": float(similar[n].max() / 20), "weight": 1 / len(words),
                       "chosen": chosen[n], "heat": heat[n] if chosen[n] else []} for n, word in enumerate(words)],
            "frames": [{"time": t, "heat": 0.5, "contribution": 0.03, "weight": 0.125} for t in frames],
            "similarities": similar.tolist(),
        }  # fmt: skip

    def moments(self, given: dict[str, str]) -> list[dict[str, Any]]:
        """Of each clip its first segment, or another one by the seed."""
        clips, seed = list(self.clips), int(given.get("seed", 0))
        if given.get("order") == "random":
            random.Random(seed).shuffle(clips)
        found = []
        for clip in clips[: int(given["k"])]:
            own = [row for row, (other, _, _) in enumerate(self.rows) if other is clip]
            moment = self.moment(own[seed % len(own)], 0.5)
            found.append({name: value for name, value in moment.items() if name not in ("score", "probability")})
        return found

    def folders(self, _: dict[str, str]) -> list[dict[str, Any]]:
        count = Counter(clip.folder for clip in self.clips)
        return [{"name": name, "files": count[name], "thumbnail": "/api/v1/thumbnails/0"} for name in sorted(count)]

    def files(self, given: dict[str, str]) -> dict[str, Any]:
        listed = [
            {"file": clip.id, "video": clip.id, "kind": clip.kind, "name": clip.title, "folder": clip.folder,
             "state": "indexed", "reason": "", "duration": clip.seconds, "size": 1_234_567,
             "modified": f"{clip.modified}T00:00:00+00:00", "thumbnail": "/api/v1/thumbnails/0",
             "managed": bool(self.allow)}
            for clip in self.clips
        ] + [
            {"file": hashlib.sha256(name.encode()).hexdigest(), "video": None, "kind": "video", "name": name,
             "folder": "travel", "state": "bad", "reason": reason, "duration": 0, "size": 17,
             "modified": "2025-01-01T00:00:00+00:00", "thumbnail": None, "managed": bool(self.allow)}
            for name, reason in self.bad.items()
        ]  # fmt: skip
        found = [
            one for one in sorted(listed, key=lambda one: str(one["name"]))
            if given.get("find", "").lower() in str(one["name"]).lower() and one["file"] not in self.removed
            and given.get("folder", one["folder"]) == one["folder"] and given.get("kind", one["kind"]) == one["kind"]
        ]  # fmt: skip
        if given.get("order") == "longest":
            found.sort(key=lambda one: -float(str(one["duration"])))
        states = {state: sum(one["state"] == state for one in found) for state in ("indexed", "bad", "gone")}
        shown = [one for one in found if given.get("state", one["state"]) == one["state"]]
        first = int(given.get("offset", 0))
        page = shown[first : first + int(given["k"])]
        return {"version": self.version, "total": len(shown), "states": states, "files": page}

    def info(self) -> dict[str, Any]:
        kinds = [clip.kind for clip in self.clips]
        return {
            "videos": kinds.count("video"), "pictures": kinds.count("picture"),
            "segments": len(self.rows), "hours": sum(c.seconds for c in self.clips) / 3600,
            "model": "prota-small", "version": self.version, "state": self.state, "detail": "", "allow": self.allow,
            "folders": sorted({clip.folder for clip in self.clips}),
        }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def log_message(self, *_: object) -> None: ...

    def send(self, body: bytes, kind: str, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")  # nothing lives on when the server stops
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), "application/json", status)

    def problem(self, status: int, title: str, detail: str, **headers: str) -> None:
        body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        self.send(json.dumps(body).encode(), "application/problem+json", status, **headers)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # pages are left
            super().handle()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = unquote(url.path)
        if not path.startswith("/api/v1"):
            if path == "/" and given.get("token") and given["token"] == self.world.token:
                return self.send(b"", "text/plain", 303, Location="/", Set_Cookie=f"fake={self.world.token}; HttpOnly")
            file = STATIC / ("index.html" if path == "/" else path.removeprefix("/static/"))
            if not file.resolve().is_relative_to(STATIC) or not file.is_file():
                return self.problem(404, "Not found", path)
            return self.send(file.read_bytes(), TYPES[file.suffix])
        if self.world.token and f"fake={self.world.token}" not in self.headers.get("Cookie", ""):
            return self.problem(401, "Token needed", "Open the page with its token.")
        self.world.asked.append(self.path)
        return self.api(path.removeprefix("/api/v1/").split("/"), given)

    def api(self, path: list[str], given: dict[str, str]) -> None:
        world = self.world
        clips = {clip.id: clip for clip in world.clips}
        match path:
            case ["library"]:
                self.json(world.info())
            case ["files" | "folders" | "moments" | "examples" as name]:
                browsed = {"files": world.files, "folders": world.folders, "moments": world.moments}
                self.json(browsed[name](given) if name in browsed else world.examples)
            case ["jobs", "folders"]:
                self.folders(given.get("path"))
            case ["jobs"]:
                self.json(list(world.jobs.values()))
            case ["jobs", job, "events"]:
                self.events(world.jobs[job])
            case ["search" | "explain", *_] if world.state != "ready":
                self.problem(503, "Not ready", "The model is being loaded.", Retry_After="1")
            case ["search"]:
                self.json(world.search(given))
            case ["explain"]:
                self.json(world.explain(given["q"], int(given["segment"])))
            case ["thumbnails", row]:
                clip, start, end = world.rows[int(row)]
                data = io.BytesIO()
                clip.picture((start + end) / 2).save(data, "JPEG")
                self.send(data.getvalue(), "image/jpeg")
            case ["videos", video, *rest] if video in clips:
                self.video(clips[video], rest, given)
            case _:
                self.problem(404, "Not found", "There is no such thing here.")

    def folders(self, path: str | None) -> None:
        """Two folders below /videos, the first of which has one below it."""
        below = {"/videos": ["2024", "<b>new</b>"], "/videos/2024": ["summer"]}
        if path is None:
            listed = [{"name": root, "path": root} for root in self.world.allow]
            self.json({"path": "", "parent": None, "files": 0, "folders": listed})
        elif not path.startswith("/videos"):
            self.problem(403, "Forbidden", f"{path} is not under a folder this server may read: /videos")
        else:
            listed = [{"name": name, "path": f"{path}/{name}"} for name in below.get(path, [])]
            parent = "" if path == "/videos" else path.rsplit("/", 1)[0]
            self.json({"path": path, "parent": parent, "files": 3, "folders": listed})

    def video(self, clip: Clip, rest: list[str], given: dict[str, str]) -> None:
        world = self.world
        if rest == ["segments"]:
            rows = [row for row, (other, _, _) in enumerate(world.rows) if other is clip]
            found = [world.moment(row, world.relevance(row, given.get("q", ""))) for row in rows]
            return self.json(
                [{name: one[name] for name in ("segment", "start", "end", "score", "probability")} for one in found]
            )
        if rest == ["clip"] and float(given["end"]) > 20:
            return self.problem(422, "Unprocessable", "the file has changed")
        if rest == ["clip"]:
            return self.send(f"{given['start']}-{given['end']}".encode(), "video/mp4")
        if rest == ["frame"]:
            data = io.BytesIO()
            clip.picture(float(given["t"]), (640, 360)).save(data, "JPEG")
            return self.send(data.getvalue(), "image/jpeg")
        if rest in (["stream"], ["play"]) and not clip.path.exists():
            return self.problem(404, "Not found", "the file of this video is not there any more")
        if rest == ["play"]:
            return self.problem(422, "Unprocessable", "cannot decode the file: no video stream")
        if rest != ["stream"]:
            size = clip.path.stat().st_size if clip.path.exists() else 0
            facts = {"duration": clip.seconds, "size": size, "codec": "vp8" if clip.seconds else "png"}
            facts |= {"title": clip.title, "folder": clip.folder, "modified": clip.modified, "kind": clip.kind}
            facts |= {"plays": "original" if clip.seconds else None, "offset": 0.0, "part": 6.0, "shift": 10.0}
            return self.json({"video": clip.id, "width": 320, "height": 180, **facts})
        data, kind = clip.path.read_bytes(), "video/webm" if clip.seconds else "image/png"
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return self.send(data, kind, Accept_Ranges="bytes")
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        part = f"bytes {first}-{last}/{len(data)}"
        return self.send(data[first : last + 1], kind, 206, Content_Range=part, Accept_Ranges="bytes")

    def events(self, job: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while True:
            self.wfile.write(f"data: {json.dumps(job)}\n\n".encode())
            self.wfile.flush()
            if job["state"] != "running":
                return
            time.sleep(0.1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        world = self.world
        if self.path.endswith("/files/remove"):
            files = json.loads(body)["files"]
            world.removed += files
            world.version += 1
            return self.json({"removed": len(files)})
        if self.path.endswith("/jobs"):
            wanted = json.loads(body)
            path, pictures = wanted.get("path", f"{len(wanted.get('files', []))} files"), wanted.get("pictures", True)
            if "files" not in wanted and not path.startswith("/videos"):
                return self.problem(403, "Not allowed", f"{path} is not under a folder this server may read: /videos")
            job = {"id": f"{len(world.jobs):016x}", "path": path, "state": "running", "detail": "", "found": 12,
                   "done": 3, "indexed": 2, "unchanged": 0, "bad": 1, "segments": 9, "seconds": 1440.0,
                   "pictures": int(pictures), "share": 0.25,
                   "reasons": [{"file": "<b>.mp4", "reason": "no frames"}]}  # fmt: skip
            world.jobs[str(job["id"])] = job
            return self.json(job, 202)
        world.asked.append(self.path)
        like = json.loads(body) if body.startswith(b"{") else {"video": world.clips[0].id}
        given = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        rows = [
            (row, 0.8 if clip.id == like["video"] else 0.3)
            for row, (clip, _, _) in enumerate(world.rows)
            if clip.folder.startswith(given.get("folder", ""))
        ]
        return self.json(world.answer("", [] if world.alone else rows))

    def do_DELETE(self) -> None:
        job = self.world.jobs[self.path.rsplit("/", 1)[1]]
        job["state"] = "cancelled"
        self.json(job)


class FakeServer:
    """The page and its API at a port; it can be stopped and started again at the same one."""

    def __init__(self, world: World, port: int = 0) -> None:
        self.world, self.port = world, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> FakeServer:
        handler = type("WorldHandler", (Handler,), {"world": self.world})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clips = [*CLIPS, PHOTO]
        for clip in clips:
            clip.write(Path(folder))
        server = FakeServer(World(clips), int(sys.argv[1]) if len(sys.argv) > 1 else 8000).start()
        print(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    main()
