"""Requests and responses of the API, each with the example that /docs shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from prota.server.problems import readable
from prota.video.showing import Plays

__all__ = [
    "JOB_EXAMPLE",
    "VIDEO_EXAMPLE",
    "AllowedFolder",
    "AllowedFolders",
    "Answer",
    "BadFile",
    "Explained",
    "ExplainedFrame",
    "FileId",
    "FileList",
    "FileOrder",
    "FileState",
    "FolderShown",
    "Health",
    "JobRecord",
    "JobRequest",
    "JobState",
    "Kind",
    "LibraryInfo",
    "LibraryState",
    "LikeRequest",
    "ListedFile",
    "MatchedWord",
    "MomentFound",
    "MomentOrder",
    "MomentShown",
    "Removal",
    "RemoveRequest",
    "TimelineSegment",
    "VideoDetails",
    "VideoId",
]

VIDEO_EXAMPLE, JOB_EXAMPLE = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "3f1c9b2a7d5e4f60"

Kind = Literal["video", "picture"]
LibraryState = Literal["loading", "ready", "failed"]
JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
FileState = Literal["indexed", "bad", "gone"]
FileOrder = Literal["name", "newest", "longest", "largest"]
MomentOrder = Literal["newest", "random"]
VideoId = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the content")]
FileId = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="id of a file of the library")]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, description="seconds")]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


_SHOWN = {
    "segment": 7, "video": VIDEO_EXAMPLE, "kind": "video", "title": "beach", "folder": "holidays", "start": 12.0,
    "end": 20.0, "best": 15.5, "duration": 64.2, "thumbnail": "/api/v1/segments/7/thumbnail?version=3",
}  # fmt: skip
_MOMENT = {**_SHOWN, "score": 0.412, "probability": 0.83}


class MomentShown(BaseModel):
    """A moment of a video, or a picture; the times of a picture are 0."""

    model_config = _example(**_SHOWN)

    segment: int = Field(description="row of the best segment, valid in this version of the library")
    video: str = Field(description="id of the video or picture: SHA-256 of its content")
    kind: Kind
    title: str = Field(description="file name without extension")
    folder: str = Field(description="name of the folder that contains the file")
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    best: float = Field(description="seconds of the frame that matches best; without a query of the middle frame")
    duration: float = Field(description="seconds of the whole video; 0 for a picture")
    thumbnail: str = Field(description="path of a JPEG")


class MomentFound(MomentShown):
    """A moment that a search found."""

    model_config = _example(**_MOMENT)

    score: float = Field(description="comparable within one query")
    probability: float | None = Field(
        description="calibrated probability of being relevant; null without calibration or for a clip as query"
    )


class Answer(BaseModel):
    """The results of a search, best first."""

    model_config = _example(
        query="a dog jumps into water", cut=False, no_good_match=False, hint=None, version=3, took_ms=14.2,
        partial=False, shards=1, shards_answered=1, damaged=0, moments=[_MOMENT], weaker=[],
    )  # fmt: skip

    query: str
    cut: bool = Field(description="whether the text was truncated to the length of the model")
    no_good_match: bool = Field(description="whether no result is a good match")
    hint: str | None = Field(None, description="what about the query may be the reason for poor results")
    version: int = Field(description="version of the library; rows of segments are valid in it alone")
    took_ms: float = Field(description="milliseconds in the server")
    partial: bool = Field(False, description="whether some shards did not answer in time")
    shards: int = Field(1, description="shards of the library")
    shards_answered: int = Field(1, description="shards that answered")
    damaged: int = Field(0, description="corrupt segments that were left out; `prota library repair` mends the library")
    moments: list[MomentFound] = Field(description="good matches")
    weaker: list[MomentFound] = Field(description="results below the threshold of good matches")


class LikeRequest(BaseModel):
    """A moment of a video of the library as the query; start and end are 0 for a picture."""

    model_config = _example(video=VIDEO_EXAMPLE, start=12, end=20) | ConfigDict(extra="forbid")

    video: VideoId
    start: Seconds
    end: Seconds


Time = Annotated[float, AfterValidator(lambda seconds: round(seconds, 3))]


class Share(BaseModel):
    """A part of a score."""

    contribution: float
    weight: float


class MatchedWord(Share):
    """A whole word of the query; contribution and weight are sums over its tokens."""

    text: Annotated[str, BeforeValidator(readable)] = Field(description="as in the query")
    chosen: bool = Field(description="whether it carries the match; false for function words")
    heat: list[float] = Field(
        description="0 to 1 for each frame: how well it fits this word alone, compared with unrelated videos; "
        "empty for function words"
    )


class ExplainedFrame(Share):
    """A frame of the segment."""

    time: Time = Field(description="seconds")
    heat: float = Field(description="0 to 1: how well it fits the whole query, compared with unrelated videos")


class Explained(BaseModel):
    """Why a segment matches. The contributions of words and rest and those of frames add up to the score."""

    model_config = _example(
        score=0.412,
        sentence="“dog” and “water” match 0:12–0:15",
        start=12.0,
        end=15.0,
        words=[
            {"text": "dog", "chosen": True, "heat": [0.8, 0.1], "contribution": 0.125, "weight": 0.61},
            {"text": "water", "chosen": True, "heat": [0.6, 0.3], "contribution": 0.08, "weight": 0.3},
        ],
        frames=[
            {"time": 12.0, "heat": 0.7, "contribution": 0.15, "weight": 0.6},
            {"time": 15.0, "heat": 0.2, "contribution": 0.052, "weight": 0.4},
        ],
        rest={"contribution": 0.005, "weight": 0.09},
        similarities=[[0.41, 0.2], [0.38, 0.22]],
    )

    score: float
    sentence: str = Field(description="which words match which seconds")
    start: Time = Field(description="of the seconds that the sentence names")
    end: Time
    words: list[MatchedWord] = Field(description="whole words in the order of the query, without punctuation")
    frames: list[ExplainedFrame]
    rest: Share = Field(description="all other tokens: punctuation and the marks at the ends of a text")
    similarities: list[list[float]] = Field(description="a row per word, a column per frame")


class VideoDetails(BaseModel):
    """A video or a picture of the library."""

    model_config = _example(
        video=VIDEO_EXAMPLE, kind="video", title="beach", folder="holidays", duration=64.2, width=1920, height=1080,
        fps=25.0, codec="h264", size=48210344, modified="2026-05-01T09:30:00+00:00", segments=31, plays="original",
        stream=f"/api/v1/videos/{VIDEO_EXAMPLE}/stream", offset=0.0, play=f"/api/v1/videos/{VIDEO_EXAMPLE}/play",
        part=6.0, shift=10.0, frame=f"/api/v1/videos/{VIDEO_EXAMPLE}/frame",
    )  # fmt: skip

    video: str = Field(description="id: SHA-256 of the content")
    kind: Kind
    title: str = Field(description="file name without extension")
    folder: str = Field(description="name of the folder that contains the file")
    duration: float = Field(description="seconds; 0 for a picture")
    width: int
    height: int
    fps: float
    codec: str
    size: int = Field(description="bytes")
    modified: str = Field(description="date and time of the last change, UTC")
    segments: int
    plays: Plays | None = Field(
        description="original: browsers play the file; remuxed, transcoded: they play parts, with the packets of the "
        "file or encoded; null: a picture, or the file cannot be read now"
    )
    stream: str = Field(description="path of the original file")
    offset: float = Field(description="seconds from the start of the original file to the first frame, which is at 0")
    play: str = Field(description="path of the parts of a video to play; add ?start=SECONDS")
    part: float = Field(description="seconds between parts")
    shift: float = Field(description="seconds that times in parts are later")
    frame: str = Field(description="path of its frames; add ?t=SECONDS&width=PIXELS")


class TimelineSegment(BaseModel):
    """A segment of a video, with its score if there is a query."""

    model_config = _example(segment=7, start=12.0, end=20.0, score=0.412, probability=0.83)

    segment: int = Field(description="row of the segment, valid in the current version of the library")
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    score: float | None
    probability: float | None = Field(description="calibrated probability of being relevant")


class LibraryInfo(BaseModel):
    """The library and the state of the server."""

    model_config = _example(
        videos=120, pictures=8, segments=3050, hours=2.1, model="prota-small", version=3, state="ready", detail="",
        folders=["holidays"], allow=["/home/me/Videos"],
    )  # fmt: skip

    videos: int
    pictures: int
    segments: int
    hours: float = Field(description="total duration of the videos")
    model: str
    version: int = Field(description="version of the library; 0 if it is empty")
    state: LibraryState
    detail: str = Field(description="the error, if the state is failed")
    folders: list[str] = Field(description="names for the search parameter folder")
    allow: list[str] = Field(description="folders that index jobs may read")


class FolderShown(BaseModel):
    """A folder that contains files of the library."""

    model_config = _example(
        name="holidays", files=42, modified="2026-05-01T09:30:00+00:00",
        thumbnail="/api/v1/segments/7/thumbnail?version=3",
    )  # fmt: skip

    name: str = Field(description="name, for the parameter folder of searches and lists")
    files: int = Field(description="indexed files in this folder and below it")
    modified: str = Field(description="date and time of the last change of such a file, UTC")
    thumbnail: str = Field(description="path of a JPEG")


_FILE = {
    "file": VIDEO_EXAMPLE, "video": VIDEO_EXAMPLE, "kind": "video", "name": "beach.mp4", "folder": "holidays",
    "state": "indexed", "reason": "", "duration": 64.2, "size": 48210344, "modified": "2026-05-01T09:30:00+00:00",
    "thumbnail": "/api/v1/segments/7/thumbnail?version=3", "managed": True,
}  # fmt: skip


class ListedFile(BaseModel):
    """A file of the library, searchable or not."""

    model_config = _example(**_FILE)

    file: str = Field(description="id of the file in the library; copies have the same content and other ids")
    video: str | None = Field(description="id of the content; null if it cannot be shown")
    kind: Kind
    name: str = Field(description="file name")
    folder: str = Field(description="name of the folder that contains the file")
    state: FileState = Field(description="bad: could not be indexed; gone: the file no longer exists")
    reason: str = Field(description="why it could not be indexed")
    duration: float = Field(description="seconds; 0 for a picture")
    size: int = Field(description="bytes")
    modified: str = Field(description="date and time of the last change, UTC")
    thumbnail: str | None = Field(description="path of a JPEG")
    managed: bool = Field(description="whether it may be removed and indexed again: it is below an allowed folder")


class FileList(BaseModel):
    """A page of the files of the library."""

    model_config = _example(version=3, total=1, states={"indexed": 1, "bad": 0, "gone": 0}, files=[_FILE])

    version: int = Field(description="version of the library; rows of segments are valid in it alone")
    total: int = Field(description="files that pass the filters, on all pages")
    states: dict[FileState, int] = Field(description="their number by state, whatever state was asked for")
    files: list[ListedFile]


class RemoveRequest(BaseModel):
    """Files to remove from the library."""

    model_config = _example(files=[VIDEO_EXAMPLE]) | ConfigDict(extra="forbid")

    files: list[FileId] = Field(min_length=1, max_length=100)


class Removal(BaseModel):
    """The effect of a removal."""

    model_config = _example(removed=1)

    removed: int = Field(description="files that are no longer in the library; on disk they stay")


class AllowedFolder(BaseModel):
    """A folder that index jobs may read."""

    name: str
    path: str = Field(description="absolute path, for a job")


class AllowedFolders(BaseModel):
    """The folders in a folder that index jobs may read."""

    model_config = _example(
        path="/home/me/Videos", parent=None, files=3, folders=[{"name": "2026", "path": "/home/me/Videos/2026"}]
    )

    path: str = Field(description="absolute path; empty for the list of all allowed folders")
    parent: str | None = Field(description="the folder above; empty for the list of all; null if there is none")
    files: int = Field(description="videos and pictures in this folder, without those in its folders")
    folders: list[AllowedFolder] = Field(description="the first 1,000 by name")


class JobRequest(BaseModel):
    """What to index: a file or folder, or files of the library."""

    model_config = _example(path="/home/me/Videos/2026", files=[], pictures=True, retry=False) | ConfigDict(
        extra="forbid"
    )

    path: str | None = Field(
        None, min_length=1, max_length=4096, description="absolute path on the computer that runs the server"
    )
    files: list[FileId] = Field([], max_length=100, description="ids of files of the library, to index them again")
    pictures: bool = Field(True, description="whether to index pictures")
    retry: bool = Field(False, description="whether to retry files that could not be indexed before")

    @model_validator(mode="after")
    def _either(self) -> JobRequest:
        if (self.path is None) != bool(self.files):
            raise ValueError("give either path or files")
        return self


class BadFile(BaseModel):
    """A file that could not be indexed."""

    file: str = Field(description="path relative to the folder of the job")
    reason: str


class JobRecord(BaseModel):
    """An index job."""

    model_config = _example(
        id=JOB_EXAMPLE, path="/home/me/Videos/2026", state="running", detail="", found=40, done=12, indexed=11,
        unchanged=0, bad=1, segments=310, pictures=0, seconds=640.5, share=0.31,
        reasons=[{"file": "broken.mp4", "reason": "no video stream"}],
    )  # fmt: skip

    id: str
    path: str = Field(description="the file or folder, or how many files")
    state: JobState
    detail: str = Field(description="the error, if the state is failed")
    found: int = Field(description="files found so far")
    done: int = Field(description="files processed")
    indexed: int = Field(description="files added or updated")
    unchanged: int = Field(description="files that were indexed before")
    bad: int = Field(description="files that failed")
    segments: int = Field(description="segments added")
    pictures: int = Field(description="pictures among the indexed files")
    seconds: float = Field(description="seconds of video that were encoded")
    share: float = Field(description="progress from 0 to 1")
    reasons: list[BadFile] = Field(description="the first 20 bad files")


class Health(BaseModel):
    """The state of the server."""

    model_config = _example(status="ready")

    status: str
