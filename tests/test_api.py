"""The front door: exported names, their examples, and what they refuse."""

from __future__ import annotations

import base64
import doctest
import hashlib
import inspect
import io
import json
import os
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image

import prota
from prota.data.prepare import prepare
from prota.model.folder import ModelFolderError
from prota.runs import config_of
from prota.samples.copying import copy_samples
from prota.video.timeline import DecodeError
from tests.library.worlds import toy_model, write_clips
from tests.processes import LIMIT, REPOSITORY

EXAMPLES = REPOSITORY / "examples"
EXPORTED = [name for name in prota.__all__ if name != "__version__"]


def test_the_exported_names_are_visible() -> None:
    assert set(dir(prota)) == set(prota.__all__)
    assert all(getattr(prota, name).__name__ == name for name in EXPORTED)


def test_options_are_keyword_only() -> None:
    """At most a subject, an object and how many."""
    for called in (prota.load, prota.evaluate, prota.Library, prota.Library.index, prota.Library.search, prota.Trainer):
        kinds = [parameter.kind for parameter in inspect.signature(called).parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) <= 3, called


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples find: sample clips, an experiment over them with its frame cache, and a library."""
    folder = tmp_path_factory.mktemp("examples")
    copy_samples(folder / "clips")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "samples.toml").write_text(
            '[data]\nbenchmark = "folder"\ncaptions = "clips/samples.csv"\nvideos = "clips"\ncache = "frames"\n'
            'cache_size = 196\n[train]\nstart = "prota-small"\n',
            encoding="utf-8",
        )
        assert list(prepare(prota.Experiment.load("samples.toml", base=config_of)))
        assert prota.Library("lib").index("clips").finished
    return folder


@pytest.mark.train
@pytest.mark.parametrize("name", EXPORTED)
def test_the_examples_are_true(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    own = getattr(prota, name)
    found = [test for test in doctest.DocTestFinder().find(own, name) if test.examples]
    for test in found:
        runner.run(test)
    assert runner.failures == 0
    assert found


@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("encode", "tensor"), ("search", "coffee.mp4 0.0"), ("explain", "coffee"), ("similar", "clips"),
        ("many_queries", "flower.mp4"), ("train", "finished"), ("evaluate", "("),
    ],
)  # fmt: skip
def test_the_scripts_run(
    name: str, printed: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert printed in capsys.readouterr().out


def test_values_are_shown_in_one_line() -> None:
    model = toy_model()
    texts = model.encode_text(["red", "a blue thing"])
    videos = model.encode_video(torch.zeros(1, 4, 3, 32, 32, dtype=torch.uint8))
    explanation = model.explain(texts[:1], videos)
    for value in (model, model.config, texts, texts.source, texts[:0], explanation, prota.Experiment()):
        assert len(repr(value)) <= 120
        assert "\n" not in repr(value)


def test_files_are_encoded_as_their_frames(tmp_path: Path) -> None:
    model = toy_model()
    clips = list(write_clips(tmp_path, "red-left", "blue-top", "green-right").values())
    together = model.encode_video(clips)
    assert len(together) == 3
    alone = prota.PreparedTokens.cat([model.encode_video(str(clip)) for clip in clips])
    torch.testing.assert_close(together.direction, alone.direction, rtol=0, atol=1e-6)
    assert model.similarity(model.encode_text(["red", "blue"]), together).shape == (2, 3)
    with pytest.raises(DecodeError, match=r"nothing\.mp4"):
        model.encode_video([clips[0], tmp_path / "nothing.mp4"])
    for wrong in ({"videos": []}, {"videos": clips, "mask": torch.ones(3, 4, dtype=torch.bool)}):
        with pytest.raises(prota.ProtaError):
            model.encode_video(**wrong)  # type: ignore[arg-type]


def test_a_library_is_searched_with_texts_and_clips(tmp_path: Path) -> None:
    clips = write_clips(tmp_path / "v", "red-left", "blue-top", "green-right")
    library = prota.Library(tmp_path / "lib", toy_model())
    assert library.index(tmp_path / "v").indexed == 3
    one, two = library.search(["red", "blue on the top"], k=2)
    alone = library.search("red", k=2)
    assert [hit.row for hit in one] == [hit.row for hit in alone]
    assert [hit.score for hit in one] == pytest.approx([hit.score for hit in alone], abs=1e-6)
    assert len(two) == 2
    assert set(one.to_dict()["moments"][0]) >= {"path", "start", "end", "score"}
    like = library.search(like=clips["red-left"], k=3)
    assert {hit.path.stem for hit in like} == {"blue-top", "green-right"}
    part = library.search(like=clips["red-left"], start=0.0, end=0.5)
    assert {hit.path.stem for hit in part} == {"blue-top", "green-right"}
    hit = one[0]
    assert hit.thumbnail.startswith(b"\xff\xd8")
    assert hit.save_clip(tmp_path / "clip.mp4").stat().st_size
    assert Image.open(io.BytesIO(hit.picture(width=24))).size == (24, 24)
    assert one.save_reel(tmp_path / "reel.mkv").stat().st_size
    assert len(one.export(tmp_path / "hits.m3u").read_text(encoding="utf-8").splitlines()) == 1 + 4 * len(one)
    why = hit.explain()
    parts = [part.contribution for part in (*why.words, *why.frames, why.rest)]
    assert sum(parts) == pytest.approx(hit.score, abs=1e-4)
    with pytest.raises(prota.ProtaError) as caught:
        like[0].explain()
    assert caught.value.code == "usage"
    assert library.search([]) == []
    refused: list[dict[str, Any]] = [{}, {"query": "red", "like": "x.mp4"}, {"query": "red", "start": 1.0, "end": 2.0}]
    for wrong in [*refused, {"like": clips["red-left"], "start": 1.0}]:
        with pytest.raises(prota.ProtaError) as caught:
            library.search(**wrong)
        assert caught.value.code == "usage"


def test_a_revision_is_of_a_hub_id(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path)
    with pytest.raises(ModelFolderError, match="hub id"):
        prota.load(tmp_path, revision="main")


class _Hub(BaseHTTPRequestHandler):
    """As much of a model hub as the upload and the download of small files need."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert self.headers["Authorization"] == "Bearer secret"
        if self.path == "/api/repos/create":
            self._answer({"url": f"http://{self.headers['Host']}/me/mine"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self._answer({"files": [file | {"shouldIgnore": False} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"commitUrl": f"http://{self.headers['Host']}/me/mine/commit/1", "commitOid": "1" * 40})
        else:
            self._answer({})

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "/tree/" in self.path:
            self._answer(
                [
                    {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                    for name, body in self.files.items()
                ]
            )
        elif self.path.startswith("/api/"):
            self._answer({"id": "me/mine", "sha": "1" * 40, "siblings": [{"rfilename": name} for name in self.files]})
        else:
            self._send(self.files[self.path.rpartition("/")[2]])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, value: object) -> None:
        self._send(json.dumps(value).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


ROUND_TRIP = """
import runpy
import sys
import torch
from prota import ProTA
model = runpy.run_path(sys.argv[1])["model"]
again = ProTA.from_pretrained("me/mine", revision="v1")
assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
"""


@pytest.mark.process
def test_a_model_is_pushed_to_a_hub_and_loaded_from_it(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "runs" / "mine")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", ROUND_TRIP, str(EXAMPLES / "push.py")],
            cwd=tmp_path,
            env=os.environ | hub | {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "secret"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("me/mine")
    assert set(_Hub.files) >= {"config.json", "model.safetensors"}
    assert any("/revision/v1" in path for path in _Hub.asked)
