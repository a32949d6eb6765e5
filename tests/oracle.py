"""The equations of the ProTA paper in plain Python floats, one small function each, to test vectorised code.

Written from the paper and the project's reading of it alone; it shares nothing with the package but the names
of the settings. Items are lists of their real tokens, so there is no padding and there are no masks. Plain
loops throughout: slow, and meant to be laid beside the paper. A zero vector normalises to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prota.config.model import DistributionConfig, LossConfig, ScoreConfig

Vector = list[float]
Item = list[Vector]  # the real tokens of one text or one video, un-normalised
Matrix = list[list[float]]


@dataclass
class Mlp:
    """Two layers, w2·relu(w1·x + b1) + b2; rows of w are outputs."""

    w1: Matrix
    b1: Vector
    w2: Matrix
    b2: Vector


@dataclass
class SideHeads:
    """W, W^mean and W^var of one modality."""

    weight: Mlp | None
    mean: Mlp | None
    var: Mlp | None


@dataclass
class Tokens:
    """The tokens of one item: points (f, and no log σ²) or Gaussians (μ and the clamped log σ²)."""

    means: Item
    log_vars: Item | None


# Arithmetic


def dot(x: Vector, y: Vector) -> float:
    """Σ_d x_d y_d."""
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def squared_distance(x: Vector, y: Vector) -> float:
    """‖x − y‖²."""
    return math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def normalise(x: Vector) -> Vector:
    """x / ‖x‖."""
    norm = math.sqrt(dot(x, x))
    return [a / norm for a in x] if norm > 0 else list(x)


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def mean_vector(vectors: Item) -> Vector:
    """The mean of each dimension over the vectors."""
    return [mean(column) for column in zip(*vectors, strict=True)]


def transpose(matrix: Matrix) -> Matrix:
    """Rows for columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


def log_sum_exp(values: list[float]) -> float:
    """log Σ exp(value)."""
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def softmax(values: list[float]) -> list[float]:
    """exp(value) / Σ exp(value)."""
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    total = math.fsum(powers)
    return [power / total for power in powers]


def sigmoid(value: float) -> float:
    """1 / (1 + exp(−value))."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))


def forward(mlp: Mlp | None, x: Vector) -> Vector:
    """w2·relu(w1·x + b1) + b2."""
    assert mlp is not None, "this configuration needs an MLP that was not given"
    hidden = [max(0.0, dot(row, x) + bias) for row, bias in zip(mlp.w1, mlp.b1, strict=True)]
    return [dot(row, hidden) + bias for row, bias in zip(mlp.w2, mlp.b2, strict=True)]


def attended(values: list[float], sharpness: float | str) -> float:
    """Σ_j x_j softmax_j(sharpness · x_j), or the largest x_j where the sharpness is 'max'."""
    if isinstance(sharpness, str):
        assert sharpness == "max"
        return max(values)
    return dot(values, softmax([sharpness * value for value in values]))


# Eq. 9 and 10: distributions and their similarity


def token_mean(f: Vector, heads: SideHeads, distribution: DistributionConfig) -> Vector:
    """Eq. 9, left: μ = W^mean(f), or f + W^mean(f)."""
    output = forward(heads.mean, f)
    if distribution.mean == "plain":
        return output
    assert distribution.mean == "residual"
    return [a + b for a, b in zip(f, output, strict=True)]


def token_log_var(f: Vector, heads: SideHeads, distribution: DistributionConfig) -> Vector:
    """Eq. 9, right: log σ² = W^var(f), clamped."""
    return [min(max(value, -10.0), 4.0) for value in forward(heads.var, f)]


def item_tokens(item: Item, heads: SideHeads, score: ScoreConfig, distribution: DistributionConfig) -> Tokens:
    """Eq. 9 for every token of an item; the tokens as they are where they are points."""
    if score.similarity == "cosine":
        return Tokens(item, None)
    means = [token_mean(f, heads, distribution) for f in item]
    log_vars = [token_log_var(f, heads, distribution) for f in item]
    return Tokens(means, log_vars)


def squared_wasserstein(
    mean_t: Vector, log_var_t: Vector, mean_v: Vector, log_var_v: Vector, score: ScoreConfig
) -> float:
    """Eq. 10 under the root: ‖μ_t − μ_v‖² + ‖σ²_t − σ²_v‖², or with σ for σ²; μ (not σ) of unit length."""
    if score.distance == "variance":
        spread_t, spread_v = [math.exp(x) for x in log_var_t], [math.exp(x) for x in log_var_v]
    else:
        assert score.distance == "deviation"
        spread_t, spread_v = [math.exp(x / 2) for x in log_var_t], [math.exp(x / 2) for x in log_var_v]
    return squared_distance(normalise(mean_t), normalise(mean_v)) + squared_distance(spread_t, spread_v)


def gaussian_similarity(
    mean_t: Vector, log_var_t: Vector, mean_v: Vector, log_var_v: Vector, score: ScoreConfig
) -> float:
    """Eq. 10: s^p = −W2 (printed), c − W2 (offset) or 1 − W2²/2 (squared)."""
    squared = squared_wasserstein(mean_t, log_var_t, mean_v, log_var_v, score)
    if score.similarity == "squared":
        return 1 - squared / 2
    if score.similarity == "offset":
        return score.offset - math.sqrt(squared)
    assert score.similarity == "printed"
    return -math.sqrt(squared)


# Eq. 1 and 2: low-dimension aggregation


def similarity_matrix(text: Tokens, video: Tokens, score: ScoreConfig) -> Matrix:
    """Eq. 1: s_ij of every text token i with every video token j; Eq. 10 for Gaussians, else the cosine."""
    if text.log_vars is None or video.log_vars is None:
        return [[dot(normalise(t), normalise(v)) for v in video.means] for t in text.means]
    return [
        [
            gaussian_similarity(mean_t, log_var_t, mean_v, log_var_v, score)
            for mean_v, log_var_v in zip(video.means, video.log_vars, strict=True)
        ]
        for mean_t, log_var_t in zip(text.means, text.log_vars, strict=True)
    ]


def low_aggregation(similarities: Matrix, score: ScoreConfig) -> list[float]:
    """Eq. 2: l_i = Σ_j s_ij softmax_j(λ s_ij), for each row i."""
    return [attended(row, score.lambda_) for row in similarities]


# Eq. 3 to 7: high-dimension aggregation


def kernel(squared: float, k: int, R: int, b: float) -> float:
    """K_k of Eq. 3: exp(−‖x − y‖² / (b · 2^(k − ⌊R/2⌋)))."""
    return math.exp(-squared / (b * 2.0 ** (k - R // 2)))


def gram_entry(x: Vector, y: Vector, score: ScoreConfig) -> float:
    """Eq. 3: g = (1/R) Σ_{k=1..R} K_k(x, y) of unit vectors; or their dot product."""
    unit_x, unit_y = normalise(x), normalise(y)
    if score.gram == "dot":
        return dot(unit_x, unit_y)
    assert score.gram == "gaussian"
    R, b = score.kernels, score.bandwidth_value
    squared = squared_distance(unit_x, unit_y)
    return math.fsum(kernel(squared, k, R, b) for k in range(1, R + 1)) / R


def gram_matrix(joint: Item, score: ScoreConfig) -> Matrix:
    """Eq. 4: G over the joint tokens, text first."""
    return [[gram_entry(x, y, score) for y in joint] for x in joint]


def block(matrix: Matrix, rows: range, columns: range) -> Matrix:
    """One of the four blocks of Eq. 4."""
    return [[matrix[i][j] for j in columns] for i in rows]


def intra_weights(gram: Matrix | None, tokens: Item, mlp: Mlp | None, score: ScoreConfig) -> list[float]:
    """Eq. 5: h_i = W(Σ_j g_ij f_j), f un-normalised; then softmax over the tokens, sigmoid, or nothing."""
    if gram is None:  # score.gram = 'none': the MLP sees the bare tokens
        mixed = tokens
    else:
        mixed = [[dot(row, list(column)) for column in zip(*tokens, strict=True)] for row in gram]
    outputs = [forward(mlp, x)[0] for x in mixed]
    if score.intra == "softmax":
        return softmax(outputs)
    if score.intra == "sigmoid":
        return [sigmoid(output) for output in outputs]
    assert score.intra == "none"
    return outputs


def inter_weights(gram: Matrix, score: ScoreConfig) -> list[float]:
    """Eq. 6: h_i = Σ_j g_ij softmax_j(ξ g_ij), for each row i."""
    return [attended(row, score.xi) for row in gram]


def token_weights(intra: list[float], inter: list[float] | None, score: ScoreConfig) -> list[float]:
    """Eq. 7: ĥ = h_inter · h_intra per token (or h_intra alone); 'normalised': divided by its sum."""
    weights = intra if inter is None else [a * b for a, b in zip(inter, intra, strict=True)]
    if score.weighting == "literal":
        return list(weights)
    assert score.weighting == "normalised"
    total = math.fsum(weights)
    return [weight / total for weight in weights]


# Eq. 8 and 11: the score of a pair


def token_score(
    text_low: list[float], text_weight: list[float], video_low: list[float], video_weight: list[float]
) -> float:
    """Eq. 8, and Eq. 11 for Gaussians: S = (l_t · ĥ_t + l_v · ĥ_v) / 2."""
    return (dot(text_low, text_weight) + dot(video_low, video_weight)) / 2


def pooled_score(text: Item, video: Item, score: ScoreConfig) -> float:
    """The row "Global Pooling": the cosine of one vector for the text and one for the video."""
    video_vector = normalise(mean_vector([normalise(token) for token in video]))
    if score.text_pooling == "last":
        text_vector = normalise(text[-1])
    else:
        assert score.text_pooling == "mean"
        text_vector = normalise(mean_vector([normalise(token) for token in text]))
    return dot(text_vector, video_vector)


PIECES = (
    "similarities",
    "text_low",
    "video_low",
    "text_intra",
    "video_intra",
    "text_inter",
    "video_inter",
    "text_weight",
    "video_weight",
    "text_uncertainty",
    "video_uncertainty",
    "score",
)


def uncertainty(tokens: Tokens) -> list[float] | None:
    """The mean over dimensions of each token's clamped log σ²; None for points."""
    if tokens.log_vars is None:
        return None
    return [mean(log_var) for log_var in tokens.log_vars]


def pieces_of(
    text: Tokens,
    video: Tokens,
    text_heads: SideHeads,
    video_heads: SideHeads,
    score: ScoreConfig,
) -> dict[str, Any]:
    """Eq. 1 to 8 (Eq. 11 for Gaussians) of one pair whose distributions are known; see `pair_pieces`."""
    pieces: dict[str, Any] = dict.fromkeys(PIECES)
    if score.aggregation == "pooling":
        pieces["score"] = pooled_score(text.means, video.means, score)
        return pieces

    similarities = similarity_matrix(text, video, score)
    text_low = low_aggregation(similarities, score)
    video_low = low_aggregation(transpose(similarities), score)

    n, m = len(text.means), len(video.means)
    text_inter, video_inter = None, None
    if score.weights == "uniform":
        text_intra, video_intra = [1 / n] * n, [1 / m] * m
    elif score.gram == "none":
        text_intra = intra_weights(None, text.means, text_heads.weight, score)
        video_intra = intra_weights(None, video.means, video_heads.weight, score)
    else:
        joint = text.means + video.means
        gram = gram_matrix(joint, score)
        of_text, of_video = range(n), range(n, n + m)
        text_intra = intra_weights(block(gram, of_text, of_text), text.means, text_heads.weight, score)
        video_intra = intra_weights(block(gram, of_video, of_video), video.means, video_heads.weight, score)
        if score.weights == "intra+inter":
            text_inter = inter_weights(block(gram, of_text, of_video), score)
            video_inter = inter_weights(block(gram, of_video, of_text), score)
    text_weight = token_weights(text_intra, text_inter, score)
    video_weight = token_weights(video_intra, video_inter, score)

    pieces["similarities"] = similarities
    pieces["text_low"], pieces["video_low"] = text_low, video_low
    pieces["text_intra"], pieces["video_intra"] = text_intra, video_intra
    pieces["text_inter"], pieces["video_inter"] = text_inter, video_inter
    pieces["text_weight"], pieces["video_weight"] = text_weight, video_weight
    pieces["text_uncertainty"], pieces["video_uncertainty"] = uncertainty(text), uncertainty(video)
    pieces["score"] = token_score(text_low, text_weight, video_low, video_weight)
    return pieces


def pair_pieces(
    text: Item,
    video: Item,
    text_heads: SideHeads,
    video_heads: SideHeads,
    score: ScoreConfig,
    distribution: DistributionConfig,
) -> dict[str, Any]:
    """Everything between the tokens of one pair and its score, keyed by `PIECES`; None for what is not used.

    With aggregation = 'pooling' only the score is there. With weights = 'uniform' the intra weights are 1/n.
    """
    text_tokens = item_tokens(text, text_heads, score, distribution)
    video_tokens = item_tokens(video, video_heads, score, distribution)
    return pieces_of(text_tokens, video_tokens, text_heads, video_heads, score)


def score_matrix(
    texts: list[Item],
    videos: list[Item],
    text_heads: SideHeads,
    video_heads: SideHeads,
    score: ScoreConfig,
    distribution: DistributionConfig,
) -> Matrix:
    """Eq. 8 (Eq. 11 for Gaussians) of every text with every video."""
    text_tokens = [item_tokens(text, text_heads, score, distribution) for text in texts]
    video_tokens = [item_tokens(video, video_heads, score, distribution) for video in videos]
    return [
        [pieces_of(text, video, text_heads, video_heads, score)["score"] for video in video_tokens]
        for text in text_tokens
    ]


# Eq. 12 to 16: the loss


def token_kl_to_standard(mu: Vector, log_var: Vector) -> float:
    """KL(N(μ, σ²) ‖ N(0, I)) of one token: ½ Σ_d (σ² + μ² − 1 − log σ²)."""
    return math.fsum(math.exp(lv) + a * a - 1 - lv for a, lv in zip(mu, log_var, strict=True)) / 2


def side_kl(items: list[Tokens]) -> float:
    """One half of Eq. 12: the mean over an item's tokens, then over the items."""
    return mean(
        mean(token_kl_to_standard(mu, log_var) for mu, log_var in zip(item.means, item.log_vars or [], strict=True))
        for item in items
    )


def kl_term(texts: list[Tokens], videos: list[Tokens]) -> float:
    """Eq. 12: L_kl = (KL of the texts + KL of the videos) / 2."""
    return (side_kl(texts) + side_kl(videos)) / 2


def kl_between(mu_p: Vector, var_p: Vector, mu_q: Vector, var_q: Vector) -> float:
    """KL(p ‖ q) inside Eq. 14, mean over d: ½ (log(σ²_q/σ²_p) + (σ²_p + (μ_p − μ_q)²)/σ²_q − 1)."""
    return mean(
        (math.log(vq / vp) + (vp + (mp - mq) ** 2) / vq - 1) / 2
        for mp, vp, mq, vq in zip(mu_p, var_p, mu_q, var_q, strict=True)
    )


def divergence(p: Tokens, q: Tokens) -> float:
    """KL(N_p ‖ N_q) of two items: mean over their token pairs."""
    vars_p = [[math.exp(x) for x in log_var] for log_var in p.log_vars or []]
    vars_q = [[math.exp(x) for x in log_var] for log_var in q.log_vars or []]
    return mean(
        kl_between(mu_p, var_p, mu_q, var_q)
        for mu_p, var_p in zip(p.means, vars_p, strict=True)
        for mu_q, var_q in zip(q.means, vars_q, strict=True)
    )


def adaptive_margin(p: Tokens, q: Tokens) -> float:
    """Eq. 14: m = exp(−KL(N_p ‖ N_q)); p the text for m_t2v, p the video for m_v2t."""
    return math.exp(-divergence(p, q))


def sigmoid_contrastive(scores: Matrix, margins: list[float], tau: float, loss: LossConfig, bias: float) -> float:
    """SigLIP's loss: mean_i Σ_j log(1 + exp(−z_ij (S_ij/τ + b))), z = 1 for i = j, else −1; the margin as in Eq. 13."""
    losses = []
    for i, row in enumerate(scores):
        total = 0.0
        for j, value in enumerate(row):
            logit = value / tau + bias
            if i == j and loss.margin == "additive":
                logit -= loss.eta * margins[i] / tau
            total += log_sum_exp([0.0, -logit if i == j else logit])
        losses.append(total + (loss.eta * margins[i] / tau if loss.margin == "literal" else 0.0))
    return mean(losses)


def contrastive(scores: Matrix, margins: list[float], tau: float, loss: LossConfig) -> float:
    """Eq. 13: −mean_i log(exp((S_ii − η m_i)/τ) / Σ_j exp(S_ij/τ)); 'additive': η m_i off S_ii below too."""
    losses = []
    for i, row in enumerate(scores):
        positive = (row[i] - loss.eta * margins[i]) / tau
        logits = [value / tau for value in row]
        if loss.margin == "additive":
            logits[i] = positive
        else:
            assert loss.margin == "literal"
        total = log_sum_exp(logits)
        # Label smoothing: a share of the target lies on every candidate alike. The literal margin stays a constant.
        kept, spread = 1 - loss.label_smoothing, loss.label_smoothing / len(row)
        smoothed = kept * (total - logits[i]) + spread * sum(total - logit for logit in logits)
        losses.append(smoothed + logits[i] - positive)
    return mean(losses)


def temperature(logit_scale: float) -> float:
    """τ of Eq. 13: 1/τ = exp(logit_scale), at most 100."""
    return 1 / min(math.exp(logit_scale), 100)


def contrastive_total(t2v: float, v2t: float) -> float:
    """Eq. 15: L_contra = (L_t2v + L_v2t) / 2."""
    return (t2v + v2t) / 2


def objective(contra: float, kl: float, loss: LossConfig) -> float:
    """Eq. 16: L = L_contra + β L_kl."""
    return contra + loss.beta * kl


def mean_log_var(items: list[Tokens]) -> float:
    """log σ², mean over dimensions, then over an item's tokens, then over the items."""
    return mean(mean(uncertainty(item) or []) for item in items)


def loss_terms(
    texts: list[Item],
    videos: list[Item],
    text_heads: SideHeads,
    video_heads: SideHeads,
    score: ScoreConfig,
    distribution: DistributionConfig,
    loss: LossConfig,
    logit_scale: float,
    logit_bias: float = 0.0,
) -> dict[str, float]:
    """Eq. 12 to 16 for a batch in which text i belongs to video i; ``kl`` lacks β, ``margin`` lacks η."""
    scores = score_matrix(texts, videos, text_heads, video_heads, score, distribution)
    tau = math.exp(-logit_scale) if loss.contrast == "sigmoid" else temperature(logit_scale)
    margins_t2v, margins_v2t = [0.0] * len(texts), [0.0] * len(videos)
    kl, text_log_var, video_log_var = 0.0, 0.0, 0.0
    if score.similarity != "cosine":
        text_tokens = [item_tokens(text, text_heads, score, distribution) for text in texts]
        video_tokens = [item_tokens(video, video_heads, score, distribution) for video in videos]
        pairs = list(zip(text_tokens, video_tokens, strict=True))
        margins_t2v = [adaptive_margin(text, video) for text, video in pairs]
        margins_v2t = [adaptive_margin(video, text) for text, video in pairs]
        kl = kl_term(text_tokens, video_tokens)
        text_log_var, video_log_var = mean_log_var(text_tokens), mean_log_var(video_tokens)
    if loss.contrast == "sigmoid":
        t2v = sigmoid_contrastive(scores, margins_t2v, tau, loss, logit_bias)
        v2t = sigmoid_contrastive(transpose(scores), margins_v2t, tau, loss, logit_bias)
    else:
        t2v = contrastive(scores, margins_t2v, tau, loss)
        v2t = contrastive(transpose(scores), margins_v2t, tau, loss)
    return {
        "contrastive_t2v": t2v,
        "contrastive_v2t": v2t,
        "kl": kl,
        "margin": mean(margins_t2v + margins_v2t),
        "text_log_var": text_log_var,
        "locality": 0.0,
        "video_log_var": video_log_var,
        "temperature": tau,
        "total": objective(contrastive_total(t2v, v2t), kl, loss),
    }
