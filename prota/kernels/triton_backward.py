"""The gradient of a tile's scores: recomputed from the tokens, handed on as the gradients of its token products.

What leaves the chip is the gradient of every dot product of the tile, in a workspace that holds some text tiles at a
time, and per-token sums. The gradients of tokens are then plain matrix products of that workspace, in a fixed order:
no atomic additions, so that equal inputs give equal gradients.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from prota.kernels.triton_tiles import (
    aggregate,
    aggregate_gradient,
    directed,
    enlist,
    fold,
    gram,
    gram_slope,
    pairs_exist,
    piece_tokens,
    products,
    similarity,
    similarity_slope,
    tile_place,
    token_vectors,
    unfold,
    unfold_rows,
    word_tokens,
)

__all__ = ["backward_kernel"]


@triton.jit
def _weight_gradient(low, weight, into, total, mean, NORMALISED: tl.constexpr):
    """Gradients of low-dimension aggregates and of their weights, from that of the half score they sum to."""
    if NORMALISED:
        into = into / total
        return into * weight, into * (low - mean)
    else:
        return into * weight, into * low


@triton.jit
def _store(at, values, inside, FRAMES: tl.constexpr, COLUMNS: tl.constexpr):
    tl.store(at, fold(values, FRAMES, COLUMNS).to(at.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_tile(
    pid, score_gradient, broken, angle_gradient, spread_gradient, sums, videos, texts,
    A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset, M: tl.constexpr, D: tl.constexpr,
    FRAMES: tl.constexpr, PIECES: tl.constexpr, TEXTS: tl.constexpr, WORDS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    GAUSSIANS: tl.constexpr, ROOT: tl.constexpr, INTER: tl.constexpr, KERNELS: tl.constexpr,
    NORMALISED: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    """Gradients of the products of one tile, [B M, A WORDS], and its share ``sums`` of the tokens' own gradients.

    Those are of the texts' weights and half norms, then of the videos'; ``videos`` and ``texts`` as in the forward
    kernel.
    """
    VIDEOS: tl.constexpr = 64 // FRAMES
    COLUMNS: tl.constexpr = TEXTS * WORDS
    PER_KERNEL: tl.constexpr = 1 / max(KERNELS, 1)
    text_tile, video_tile = tile_place(pid, tl.cdiv(A, TEXTS), tl.cdiv(B, VIDEOS), GROUP)
    columns, exist = word_tokens(text_tile, A, TEXTS, WORDS)
    rows, cosines = (), ()
    for p in tl.static_range(PIECES):
        rows = rows + (piece_tokens(p, video_tile, B, FRAMES, M)[0],)
        cosines = cosines + (tl.zeros([64, COLUMNS], tl.float32),)
    cosines = products(cosines, videos[0], texts[0], rows, columns, STEPS, D, DEPTH, PIECES, PRECISION)
    accs = cosines
    if GAUSSIANS:
        accs = products(accs, videos[1], texts[1], rows, columns, STEPS, D, DEPTH, PIECES, PRECISION)

    bias, norm, weight, real = token_vectors(texts[2], texts[3], texts[4], columns, exist)
    pair = pairs_exist(video_tile, text_tile, A, B, VIDEOS, TEXTS)
    blank = tl.where(tl.reshape(real, [1, TEXTS, WORDS]) & pair[:, :, None], 0.0, 1.0)
    weight = tl.reshape(weight, [1, TEXTS, WORDS])
    angles, grams, biases, shifts, values, weights, blanks = (), (), (), (), (), (), ()
    similarities = ()
    for p in tl.static_range(PIECES):
        exist_p = piece_tokens(p, video_tile, B, FRAMES, M)[1]
        bias_p, norm_p, weight_p, real_p = token_vectors(videos[2], videos[3], videos[4], rows[p], exist_p)
        weights = weights + (unfold_rows(weight_p, FRAMES),)
        blanks = blanks + (tl.where(unfold_rows(real_p, FRAMES) & pair[None, :, :], 0.0, 1.0),)
        shifts = shifts + (low_shift,)
        value = unfold(accs[p] - norm_p[:, None] - norm[None, :], FRAMES, TEXTS, WORDS)
        values, similarities = values + (value,), similarities + (similarity(value, offset, ROOT),)
        if INTER:
            angle = unfold(cosines[p], FRAMES, TEXTS, WORDS)
            angles, grams = angles + (angle,), grams + (gram(angle, scale, KERNELS),)
            biases = biases + (unfold(bias_p[:, None] + (bias + inter_shift)[None, :], FRAMES, TEXTS, WORDS),)
    low, low_inverse, low_top, lows, low_inverses, low_tops, least = aggregate(
        similarities, shifts, blanks, blank, low_rate, LOW, PIECES, False
    )
    doubled, doubles = weight + tl.zeros_like(low), ()
    if INTER:
        high, high_inverse, high_top, highs, high_inverses, high_tops, least_sum = aggregate(
            grams, biases, blanks, blank, inter_rate, HIGH, PIECES, KERNELS > 0
        )
        least = tl.minimum(least, least_sum)
        doubled = weight * high * PER_KERNEL
    for p in tl.static_range(PIECES):
        if INTER:
            doubles = doubles + (weights[p] * highs[p] * PER_KERNEL,)
        else:
            doubles = doubles + (weights[p] + tl.zeros_like(lows[p]),)
    _, total, total_f, mean, mean_f = directed(low, lows, doubled, doubles, NORMALISED, PIECES)
    if not REPAIR:
        enlist(broken, pid, least)

    video, text = video_tile * VIDEOS + tl.arange(0, VIDEOS), text_tile * TEXTS + tl.arange(0, TEXTS)
    at = score_gradient + text.to(tl.int64)[None, :] * B + video[:, None]
    into = 0.5 * tl.load(at, mask=pair, other=0.0)
    into_low, own = _weight_gradient(low, doubled, into[:, :, None], total[:, :, None], mean[:, :, None], NORMALISED)
    into_high = own
    if INTER:
        own, into_high = own * high * PER_KERNEL, own * weight * PER_KERNEL
    height, width = (B * M).to(tl.int64), (A * WORDS).to(tl.int64)
    of_words = tl.zeros([FRAMES, VIDEOS, TEXTS, WORDS], tl.float32)
    for p in tl.static_range(PIECES):
        exist_p = piece_tokens(p, video_tile, B, FRAMES, M)[1]
        into_low_f, own_f = _weight_gradient(
            lows[p], doubles[p], into[None, :, :], total_f[None, :, :], mean_f[None, :, :], NORMALISED
        )
        spread = similarity_slope(values[p], ROOT) * aggregate_gradient(
            similarities[p], low_shift, low, low_inverse, low_top, into_low,
            lows[p], low_inverses[p], low_tops[p], into_low_f, low_rate, LOW,
        )  # fmt: skip
        angle = spread
        if INTER:
            angle += gram_slope(angles[p], scale, KERNELS) * aggregate_gradient(
                grams[p], biases[p], high, high_inverse, high_top, into_high,
                highs[p], high_inverses[p], high_tops[p], own_f * weights[p] * PER_KERNEL, inter_rate, HIGH,
            )  # fmt: skip
            own_f = own_f * highs[p] * PER_KERNEL
        here = rows[p][:, None] * width + columns[None, :]
        inside = exist_p[:, None] & exist[None, :]
        _store(angle_gradient + here, angle, inside, FRAMES, COLUMNS)
        tl.store(sums[2] + text_tile * height + rows[p], fold(tl.sum(own_f, 2), FRAMES, 1), exist_p)
        if GAUSSIANS:
            _store(spread_gradient + here, spread, inside, FRAMES, COLUMNS)
            of_frames = fold(tl.sum(tl.sum(spread, 3), 2), FRAMES, 1)
            tl.store(sums[3] + text_tile * height + rows[p], -of_frames, exist_p)
            of_words += spread
    at = video_tile * width + columns
    tl.store(sums[0] + at, tl.reshape(tl.sum(own, 0), [COLUMNS]), exist)
    if GAUSSIANS:
        tl.store(sums[1] + at, -tl.reshape(tl.sum(tl.sum(of_words, 0), 0), [COLUMNS]), exist)


@triton.jit(do_not_specialize=["A", "B"])
def backward_kernel(
    score_gradient, broken, angle_gradient, spread_gradient,
    text_weight_gradient, text_norm_gradient, video_weight_gradient, video_norm_gradient,
    video_direction, video_spread, video_norm, video_weight, video_mask,
    text_direction, text_spread, text_norm, text_weight, text_mask,
    A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset, M: tl.constexpr, D: tl.constexpr,
    FRAMES: tl.constexpr, PIECES: tl.constexpr, TEXTS: tl.constexpr, WORDS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    GAUSSIANS: tl.constexpr, ROOT: tl.constexpr, INTER: tl.constexpr, KERNELS: tl.constexpr,
    NORMALISED: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile; REPAIR: of those tiles alone that an earlier run found ``broken``."""
    videos = (video_direction, video_spread, video_norm, video_weight, video_mask)
    texts = (text_direction, text_spread, text_norm, text_weight, text_mask)
    sums = (text_weight_gradient, text_norm_gradient, video_weight_gradient, video_norm_gradient)
    number = tl.program_id(0)
    if REPAIR:
        count = tl.load(broken)
        while number < count:
            _gradient_tile(
                tl.load(broken + 1 + number), score_gradient, broken, angle_gradient, spread_gradient, sums, videos,
                texts, A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset,
                M, D, FRAMES, PIECES, TEXTS, WORDS, DEPTH, GROUP, PRECISION,
                GAUSSIANS, ROOT, INTER, KERNELS, NORMALISED, LOW, HIGH, REPAIR,
            )  # fmt: skip
            number += tl.num_programs(0)
    else:
        _gradient_tile(
            number, score_gradient, broken, angle_gradient, spread_gradient, sums, videos, texts,
            A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset,
            M, D, FRAMES, PIECES, TEXTS, WORDS, DEPTH, GROUP, PRECISION,
            GAUSSIANS, ROOT, INTER, KERNELS, NORMALISED, LOW, HIGH, REPAIR,
        )  # fmt: skip
