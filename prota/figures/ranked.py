"""The scores of a checkpoint on a split, and the choice of a caption with two videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prota.evaluation.metrics import text_ranks
from prota.evaluation.report import Evaluation
from prota.evaluation.scoring import Progress, score_split, score_texts
from prota.figures.drawing import FigureError
from prota.model.prota import ProTA
from prota.ranking import rank_of_target
from prota.types import PreparedTokens

__all__ = ["Choice", "Pictures", "RankedSplit"]

Pictures = dict[str, np.ndarray[Any, Any]]
"""Video id → the frames for the model, uint8 [M, S, S, 3]."""


@dataclass(frozen=True)
class Choice:
    """A caption, its own video and another video."""

    caption: str
    positive: str
    negative: str


class RankedSplit:
    """The scores of every caption of a split with every video."""

    def __init__(self, evaluation: Evaluation, progress: Progress | None = None) -> None:
        self.model: ProTA = evaluation.system.model
        self.evaluation = evaluation
        self.split = evaluation.split
        if len(self.split) < 2 or not self.split.pairs:
            raise FigureError(
                f"the {self.split.name} split has {len(self.split)} videos and {len(self.split.pairs)} captions: "
                "a comparison needs two videos and a caption"
            )
        self.captions = [caption for _, caption in self.split.pairs]
        scored = score_split(self.model, evaluation.reader, self.split, autocast=evaluation.autocast, progress=progress)
        self.scores, self.video_of_text, self.videos = scored.scores, scored.video_of_text, scored.videos
        self._places = {video_id: place for place, video_id in enumerate(self.split.video_ids)}

    def ranks(self) -> Tensor:
        """Expected rank of each caption's own video, [texts]."""
        return text_ranks(self.scores, self.video_of_text).expected()

    def best_others(self) -> tuple[Tensor, Tensor]:
        """Score and index of the best other video of each caption, [texts] each."""
        others = self.scores.scatter(1, self.video_of_text[:, None], -torch.inf)
        score, place = others.max(dim=1)
        return score, place

    def own_scores(self) -> Tensor:
        """Score of each caption with its own video, [texts]."""
        return self.scores.gather(1, self.video_of_text[:, None])[:, 0]

    def place(self, video_id: str) -> int:
        if video_id not in self._places:
            raise FigureError(
                f"{video_id} is not one of the {len(self.split)} {self.split.name} videos; use one of them, such as "
                f"{self.split.video_ids[0]}, or another --split"
            )
        return self._places[video_id]

    def row(self, caption: str) -> Tensor:
        """Scores of any text with every video, [videos]."""
        return score_texts(self.model, [caption], self.videos, autocast=self.evaluation.autocast)[0]

    def rank(self, caption: str, video_id: str) -> float:
        """Expected rank of a video for any text."""
        return float(rank_of_target(self.row(caption)[None], torch.tensor([self.place(video_id)])).expected())

    def video(self, video_id: str) -> PreparedTokens:
        place = self.place(video_id)
        return self.videos[place : place + 1]

    @torch.inference_mode()
    def text(self, caption: str) -> PreparedTokens:
        with self.evaluation.autocast():
            return self.model.encode_text([caption])

    def pictures(self, *video_ids: str) -> Pictures:
        """The frames of videos for the model."""
        batch = self.evaluation.reader.read(video_ids)
        rows = zip(video_ids, batch.frames, batch.mask, strict=True)
        return {video_id: frames[mask].numpy() for video_id, frames, mask in rows}

    def choose(self, caption: str | None, video: str | None, negative: str | None) -> Choice:
        """Complete a choice; by default, the closest right decision and the best other video.

        A caption without ``video`` must be one of the split.
        """
        if caption is not None and not caption.strip():
            raise FigureError("the caption is empty")
        if caption is None or video is None:
            allowed = self._allowed(caption, video)
            index = self._closest(allowed)
            caption, video = self.captions[index], self.split.video_ids[int(self.video_of_text[index])]
        own = self.place(video)
        if negative is None:
            others = self.row(caption).index_fill(0, torch.tensor(own), -torch.inf)
            negative = self.split.video_ids[int(others.argmax())]
        elif self.place(negative) == own:
            raise FigureError(f"{negative} is the caption's own video: use another one as the negative")
        return Choice(caption, video, negative)

    def _allowed(self, caption: str | None, video: str | None) -> Tensor:
        """Which captions of the split match, [texts] bool."""
        if video is not None:
            allowed = self.video_of_text == self.place(video)
            if not allowed.any():
                raise FigureError(f"{video} has no caption in the {self.split.name} split: pass --caption too")
            return allowed
        if caption is None:
            return torch.ones(len(self.captions), dtype=torch.bool)
        wanted = " ".join(caption.lower().split())
        allowed = torch.tensor([" ".join(own.lower().split()) == wanted for own in self.captions])
        if not allowed.any():
            raise FigureError(f"“{caption}” is not a caption of the {self.split.name} split: pass --video too")
        return allowed

    def _closest(self, allowed: Tensor) -> int:
        """The allowed caption with the smallest lead over the best other video, of right decisions if any."""
        lead = self.own_scores() - self.best_others()[0]
        right = allowed & (lead > 0)
        considered = right if right.any() else allowed
        return int(lead.abs().masked_fill(~considered, torch.inf).argmin())
