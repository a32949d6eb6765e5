"""The score of texts and videos: what one side needs alone is prepared once, then pairs are scored block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prota.config.model import DistributionConfig, ScoreConfig
from prota.kernels import dispatch
from prota.kernels.dispatch import Backend
from prota.scoring.aggregation import (
    combine_directions,
    double_weight,
    inter_modality,
    intra_modality,
    low_dimension,
    pooling_weights,
    uniform_weights,
)
from prota.scoring.distributions import GaussianHead, TokenMlp
from prota.scoring.similarity import cosine_similarity, gram_block, token_similarity
from prota.types import Explanation, PreparedTokens, TokenGaussians, Tokens

__all__ = ["ScoreHead", "pooled"]

# Elements of one pair tensor in a block; about ten such tensors are alive at a time. What fits the caches of a CPU
# would keep a GPU waiting for its next kernel.
_BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}


@dataclass(frozen=True)
class _Pieces:
    """What a block of scores is made of, padding included; leading axes [A, B], or 1 where the pair does not matter."""

    similarity: Tensor
    text_low: Tensor
    video_low: Tensor
    text_intra: Tensor
    video_intra: Tensor
    text_inter: Tensor | None
    video_inter: Tensor | None
    text_weight: Tensor
    video_weight: Tensor


class _Side(nn.Module):
    """The learned parts of one modality."""

    def __init__(self, width: int, score: ScoreConfig, distribution: DistributionConfig) -> None:
        super().__init__()
        weighted = score.aggregation == "tokens" and score.weights != "uniform"
        self.gaussian = GaussianHead(width, distribution) if score.probabilistic else None
        self.weight = TokenMlp(width, 1) if weighted else None

    def represent(self, tokens: Tokens) -> Tokens | TokenGaussians:
        """Points or Gaussians in at least single precision, zero at padding whatever stood there."""
        padding = ~tokens.mask.unsqueeze(-1)
        points = tokens.embeddings.masked_fill(padding, 0)
        if points.dtype in (torch.float16, torch.bfloat16):
            points = points.float()
        clean = Tokens(points, tokens.mask)
        if self.gaussian is None:
            return clean
        gaussians: TokenGaussians = self.gaussian(clean)
        mean, log_var = gaussians.mean.masked_fill(padding, 0), gaussians.log_var.masked_fill(padding, 0)
        return TokenGaussians(mean, log_var, tokens.mask)


class ScoreHead(nn.Module):
    """ProTA's score, and every ablation of it, over given tokens."""

    def __init__(self, width: int, score: ScoreConfig, distribution: DistributionConfig) -> None:
        super().__init__()
        self.config = score
        self.text = _Side(width, score, distribution)
        self.video = _Side(width, score, distribution)

    @property
    def _pools(self) -> bool:
        return self.config.aggregation == "pooling"

    def prepare_texts(self, tokens: Tokens) -> PreparedTokens:
        """Everything of the texts that does not depend on a video."""
        return self._prepare(self.text, tokens, last_only=self.config.text_pooling == "last")

    def prepare_videos(self, tokens: Tokens) -> PreparedTokens:
        """Everything of the videos that does not depend on a text."""
        return self._prepare(self.video, tokens, last_only=False)

    def _prepare(self, side: _Side, tokens: Tokens, last_only: bool) -> PreparedTokens:
        with torch.autocast(tokens.embeddings.device.type, enabled=False):
            source = side.represent(tokens)
            direction = F.normalize(_points(source), dim=-1)
            spread = None
            if isinstance(source, TokenGaussians):
                exponent = source.log_var if self.config.distance == "variance" else 0.5 * source.log_var
                spread = exponent.exp().masked_fill(~source.mask.unsqueeze(-1), 0)
            if self._pools:
                weight = pooling_weights(direction, tokens.mask, last_only)
            elif side.weight is None:
                weight = uniform_weights(tokens.mask, direction.dtype)
            else:
                gram = None
                if self.config.gram != "none":
                    gram = gram_block(direction @ direction.transpose(-1, -2), self.config)
                weight = intra_modality(gram, _points(source), tokens.mask, mlp=side.weight, config=self.config)
            return PreparedTokens(direction, spread, weight, tokens.mask, source)

    def score(self, texts: PreparedTokens, videos: PreparedTokens, backend: Backend = "auto") -> Tensor:
        """S^p of every text with every video, [A, B]; S where tokens are points.

        By the fused kernels where they can, else by `reference_score`; ``backend`` says which.
        """
        _check_kind(texts, self.config)
        _check_kind(videos, self.config)
        if not len(texts) or not len(videos):
            return texts.direction.new_zeros(len(texts), len(videos))
        chosen = dispatch.choose(self.config, texts, videos, backend)
        dispatch.note(chosen)
        if chosen == "reference":
            return self.reference_score(texts, videos)
        with torch.autocast(texts.direction.device.type, enabled=False):
            return dispatch.fused_score(chosen, texts, videos, self.config)

    def reference_score(
        self, texts: PreparedTokens, videos: PreparedTokens, block_elements: int | None = None
    ) -> Tensor:
        """Eq. (11): S^p of every text with every video, [A, B]; S where tokens are points.

        The readable maths. Works through blocks of pairs, so that its memory does not grow with A · B · N · M.
        """
        texts, videos = _checked(texts, self.config), _checked(videos, self.config)
        with torch.autocast(texts.direction.device.type, enabled=False):
            if self._pools:
                return pooled(texts) @ pooled(videos).T
            elements = block_elements or _BLOCK_ELEMENTS.get(texts.direction.device.type, _BLOCK_ELEMENTS["cpu"])
            rows, columns = self._block_shape(texts, videos, elements)
            video_blocks = _blocks(videos, columns)
            return torch.cat(
                [
                    torch.cat([self._score_block(text_block, video_block) for video_block in video_blocks], dim=1)
                    for text_block in _blocks(texts, rows)
                ]
            )

    def _block_shape(self, texts: PreparedTokens, videos: PreparedTokens, elements: int) -> tuple[int, int]:
        pairs = max(1, elements // (texts.mask.shape[1] * videos.mask.shape[1]))
        columns = min(len(videos), max(1, math.isqrt(pairs)))
        return max(1, pairs // columns), columns

    def _score_block(self, texts: PreparedTokens, videos: PreparedTokens) -> Tensor:
        pieces = self._pieces(texts, videos)
        return combine_directions(pieces.text_low, pieces.text_weight, pieces.video_low, pieces.video_weight)

    def _pieces(self, texts: PreparedTokens, videos: PreparedTokens) -> _Pieces:
        """Eq. 1 to 7 for every pair of a block."""
        config = self.config
        cosines = cosine_similarity(texts, videos)
        similarity = token_similarity(texts, videos, cosines, config)
        text_mask, video_mask = texts.mask[:, None, None, :], videos.mask[None, :, None, :]
        text_intra, video_intra = texts.weight[:, None], videos.weight[None]
        text_inter = video_inter = None
        if config.weights == "intra+inter":
            gram = gram_block(cosines, config)
            text_inter = inter_modality(gram, video_mask, config.xi)
            video_inter = inter_modality(gram.transpose(-1, -2), text_mask, config.xi)
        return _Pieces(
            similarity=similarity,
            text_low=low_dimension(similarity, video_mask, config.lambda_),
            video_low=low_dimension(similarity.transpose(-1, -2), text_mask, config.lambda_),
            text_intra=text_intra,
            video_intra=video_intra,
            text_inter=text_inter,
            video_inter=video_inter,
            text_weight=double_weight(text_intra, text_inter, config),
            video_weight=double_weight(video_intra, video_inter, config),
        )

    def _pooling_pieces(self, texts: PreparedTokens, videos: PreparedTokens) -> _Pieces:
        """Pooled vectors are sums of weighted tokens, so their dot product splits over words and over frames."""
        cosines = cosine_similarity(texts, videos)
        text, video = texts.weight[:, None], videos.weight[None]
        text_low, video_low = (cosines * video.unsqueeze(-2)).sum(-1), (cosines * text.unsqueeze(-1)).sum(-2)
        return _Pieces(cosines, text_low, video_low, text, video, None, None, text, video)

    @torch.no_grad()
    def explain(self, text: PreparedTokens, video: PreparedTokens) -> Explanation:
        """The pieces of the score of one text and one video."""
        if len(text) != 1 or len(video) != 1:
            raise ValueError(f"explain takes one text and one video; got {len(text)} texts and {len(video)} videos")
        text, video = _checked(text, self.config), _checked(video, self.config)
        with torch.autocast(text.direction.device.type, enabled=False):
            pieces = self._pooling_pieces(text, video) if self._pools else self._pieces(text, video)
        words, frames = text.mask[0], video.mask[0]
        return Explanation(
            similarities=pieces.similarity[0, 0][words][:, frames],
            text_low=pieces.text_low[0, 0][words],
            video_low=pieces.video_low[0, 0][frames],
            text_intra=pieces.text_intra[0, 0][words],
            video_intra=pieces.video_intra[0, 0][frames],
            text_inter=None if pieces.text_inter is None else pieces.text_inter[0, 0][words],
            video_inter=None if pieces.video_inter is None else pieces.video_inter[0, 0][frames],
            text_weight=pieces.text_weight[0, 0][words],
            video_weight=pieces.video_weight[0, 0][frames],
            text_uncertainty=self._uncertainty(text),
            video_uncertainty=self._uncertainty(video),
        )

    @torch.no_grad()
    def frame_fits(self, texts: PreparedTokens, videos: PreparedTokens) -> Tensor:
        """[A, B, M], how well every frame fits every text by itself: l of the frame; −inf at padding."""
        texts, videos = _checked(texts, self.config), _checked(videos, self.config)
        with torch.autocast(texts.direction.device.type, enabled=False):
            if self._pools:
                fits = self._pooling_pieces(texts, videos).video_low
            else:
                cosines = cosine_similarity(texts, videos)
                similarity = token_similarity(texts, videos, cosines, self.config).transpose(-1, -2)
                fits = low_dimension(similarity, texts.mask[:, None, None, :], self.config.lambda_)
        return fits.masked_fill(~videos.mask, -torch.inf)

    def _uncertainty(self, item: PreparedTokens) -> Tensor | None:
        if item.spread is None:
            return None
        log_spread = item.spread[0][item.mask[0]].log().mean(dim=-1)
        return log_spread if self.config.distance == "variance" else 2 * log_spread


def _check_kind(items: PreparedTokens, config: ScoreConfig) -> None:
    """Tokens that another kind of model prepared are refused."""
    if (items.spread is not None) != config.probabilistic:
        has, needs = ("points", "Gaussians") if config.probabilistic else ("Gaussians", "points")
        raise ValueError(
            f"these tokens are {has}, but score.similarity={config.similarity!r} compares {needs}: "
            "prepare them with the same model"
        )


def _checked(items: PreparedTokens, config: ScoreConfig) -> PreparedTokens:
    """In single precision at least."""
    _check_kind(items, config)
    half = items.direction.dtype in (torch.float16, torch.bfloat16)
    return items.to(torch.float32) if half else items


def _points(source: Tokens | TokenGaussians) -> Tensor:
    return source.mean if isinstance(source, TokenGaussians) else source.embeddings


def pooled(items: PreparedTokens) -> Tensor:
    """[A, D], tokens summed by their own weights."""
    return torch.einsum("an,and->ad", items.weight, items.direction)


def _blocks(items: PreparedTokens, size: int) -> list[PreparedTokens]:
    return [items[start : start + size] for start in range(0, len(items), size)]
