"""Requests and responses of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from prota.server.problems import readable

__all__ = [
    "Answer",
    "BadFile",
    "Explained",
    "FrameShare",
    "Health",
    "JobRecord",
    "JobRequest",
    "Kind",
    "LibraryInfo",
    "LikeRequest",
    "MomentFound",
    "TimelineSegment",
    "VideoDetails",
    "VideoId",
    "WordShare",
]

Kind = Literal["video", "picture"]
VideoId = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class MomentFound(BaseModel):
    """A stretch of a video that a search found, or a picture; a picture's times are all 0."""

    segment: int = Field(description="row of its best segment, in this version of the library")
    video: str = Field(description="id of the video or picture: SHA-256 of its content")
    kind: Kind
    title: str
    folder: str
    start: float
    end: float
    best: float = Field(description="seconds at which the frame that matches best is shown")
    score: float
    relevance: float | None = Field(
        description="calibrated probability of being relevant; null if the model is not calibrated"
    )
    duration: float
    thumbnail: str


class Answer(BaseModel):
    """The results of a search, best first."""

    query: str
    cut: bool = Field(description="whether the text was longer than the model reads")
    no_good_match: bool
    version: int = Field(description="of the library; rows of segments mean nothing in another")
    took_ms: float
    partial: bool = Field(False, description="whether a part of the library was not searched, as it did not answer")
    shards: int = Field(1, description="parts of the library")
    shards_answered: int = Field(1, description="parts that were searched")
    moments: list[MomentFound]
    weaker: list[MomentFound] = Field(description="found, but no good matches")


class LikeRequest(BaseModel):
    """A stretch of a video of the library as the query; start and end are 0 for a picture."""

    model_config = ConfigDict(extra="forbid")

    video: VideoId
    start: Seconds
    end: Seconds


class WordShare(BaseModel):
    """What a whole word adds to a score: contribution and weight are sums over its tokens."""

    text: Annotated[str, BeforeValidator(readable)] = Field(description="as it was written")
    contribution: float
    weight: float
    uncertainty: float | None = Field(description="mean log variance of its tokens; null where they are points")
    rest: bool = Field(description="true for the tokens that belong to no word, such as the marks at a text's ends")


class FrameShare(BaseModel):
    """What a frame adds to a score."""

    time: Annotated[float, AfterValidator(lambda seconds: round(seconds, 3))]
    contribution: float
    weight: float


class Explained(BaseModel):
    """What a score is made of: the contributions of words and frames add up to it."""

    score: float
    words: list[WordShare]
    frames: list[FrameShare]
    similarities: list[list[float]] = Field(description="words x frames")


class VideoDetails(BaseModel):
    """A video or a picture of the library."""

    video: str
    kind: Kind
    title: str
    folder: str
    duration: float = Field(description="seconds; 0 for a picture")
    width: int
    height: int
    fps: float
    codec: str
    size: int
    modified: str
    segments: int
    stream: str


class TimelineSegment(BaseModel):
    """A segment of a video, and how well it matches."""

    segment: int
    start: float
    end: float
    score: float | None
    relevance: float | None


class LibraryInfo(BaseModel):
    """What can be searched."""

    videos: int
    pictures: int
    segments: int
    hours: float = Field(description="of all videos")
    model: str
    version: int
    state: Literal["loading", "ready", "failed"]
    detail: str = Field(description="why, where it failed")
    folders: list[str]
    allow: list[str] = Field(description="folders below which index jobs may read")


class JobRequest(BaseModel):
    """What is to be indexed."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=4096)
    pictures: bool = Field(True, description="whether pictures are indexed, too")


class BadFile(BaseModel):
    """A file that could not be indexed."""

    file: str = Field(description="its place below the folder of the job")
    reason: str


class JobRecord(BaseModel):
    """An index job."""

    id: str
    path: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    detail: str
    found: int
    done: int
    indexed: int
    unchanged: int
    bad: int
    segments: int
    pictures: int = Field(description="of the files that were indexed")
    seconds: float = Field(description="of video that was encoded")
    share: float = Field(description="of the work that is done, 0 to 1")
    reasons: list[BadFile] = Field(description="the first 20 of the bad files")


class Health(BaseModel):
    """Whether the server is there, or ready."""

    status: str
