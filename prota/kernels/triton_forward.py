"""The fused score of a tile of texts and videos: only the scores leave the chip."""

# mypy: ignore-errors

import triton
import triton.language as tl

from prota.kernels.triton_tiles import (
    aggregate,
    directed,
    enlist,
    gram,
    pairs_exist,
    piece_tokens,
    products,
    similarity,
    tile_place,
    token_vectors,
    unfold,
    unfold_rows,
    word_tokens,
)

__all__ = ["forward_kernel"]


@triton.jit
def _score_tile(
    pid, scores, broken, chosen, allowed, videos, texts,
    A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset, M: tl.constexpr, D: tl.constexpr,
    FRAMES: tl.constexpr, PIECES: tl.constexpr, TEXTS: tl.constexpr, WORDS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    GAUSSIANS: tl.constexpr, ROOT: tl.constexpr, INTER: tl.constexpr, KERNELS: tl.constexpr,
    NORMALISED: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    OUTPUT: tl.constexpr, REPAIR: tl.constexpr, FILTER: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    """``videos`` and ``texts``: direction, spread, half norm, weight and mask of their tokens."""
    VIDEOS: tl.constexpr = 64 // FRAMES
    PER_KERNEL: tl.constexpr = 1 / max(KERNELS, 1)
    video_tiles = tl.cdiv(B, VIDEOS)
    if OUTPUT == "chosen":
        text_tile, video_tile = pid // CHOSEN, tl.load(chosen + pid)
    else:
        text_tile, video_tile = tile_place(pid, tl.cdiv(A, TEXTS), video_tiles, GROUP)
    columns, exist = word_tokens(text_tile, A, TEXTS, WORDS)
    rows, accs = (), ()
    for p in tl.static_range(PIECES):
        rows = rows + (piece_tokens(p, video_tile, B, FRAMES, M)[0],)
        accs = accs + (tl.zeros([64, TEXTS * WORDS], tl.float32),)
    accs = products(accs, videos[0], texts[0], rows, columns, STEPS, D, DEPTH, PIECES, PRECISION)

    pair = pairs_exist(video_tile, text_tile, A, B, VIDEOS, TEXTS)
    bias, norm, weight, real = token_vectors(texts[2], texts[3], texts[4], columns, exist)
    blank = tl.where(tl.reshape(real, [1, TEXTS, WORDS]) & pair[:, :, None], 0.0, 1.0)
    weight = tl.reshape(weight, [1, TEXTS, WORDS])
    grams, biases, shifts, norms, weights, blanks = (), (), (), (), (), ()
    for p in tl.static_range(PIECES):
        exist_p = piece_tokens(p, video_tile, B, FRAMES, M)[1]
        bias_p, norm_p, weight_p, real_p = token_vectors(videos[2], videos[3], videos[4], rows[p], exist_p)
        norms, weights = norms + (norm_p,), weights + (unfold_rows(weight_p, FRAMES),)
        blanks = blanks + (tl.where(unfold_rows(real_p, FRAMES) & pair[None, :, :], 0.0, 1.0),)
        shifts = shifts + (low_shift,)
        if INTER:
            grams = grams + (gram(unfold(accs[p], FRAMES, TEXTS, WORDS), scale, KERNELS),)
            biases = biases + (unfold(bias_p[:, None] + (bias + inter_shift)[None, :], FRAMES, TEXTS, WORDS),)
    least_sum = 1.0
    if INTER:
        high, _, _, highs, _, _, least_sum = aggregate(
            grams, biases, blanks, blank, inter_rate, HIGH, PIECES, KERNELS > 0
        )
        # `gram` gives sums of kernels, not means.
        weight, doubled = weight * high * PER_KERNEL, ()
        for p in tl.static_range(PIECES):
            doubled = doubled + (weights[p] * highs[p] * PER_KERNEL,)
        weights = doubled

    if GAUSSIANS:
        accs = products(accs, videos[1], texts[1], rows, columns, STEPS, D, DEPTH, PIECES, PRECISION)
    values = ()
    for p in tl.static_range(PIECES):
        value = similarity(accs[p] - norms[p][:, None] - norm[None, :], offset, ROOT)
        values = values + (unfold(value, FRAMES, TEXTS, WORDS),)
    low, _, _, lows, _, _, least = aggregate(values, shifts, blanks, blank, low_rate, LOW, PIECES, False)
    score, _, _, _, _ = directed(low, lows, weight, weights, NORMALISED, PIECES)
    if not REPAIR:
        enlist(broken, pid, tl.minimum(least, least_sum))
    _write(score, scores, allowed, pid, text_tile, video_tile, video_tiles, A, B, VIDEOS, TEXTS, OUTPUT, FILTER)


@triton.jit
def _write(
    score, scores, allowed, pid, text_tile, video_tile, video_tiles, A, B,
    VIDEOS: tl.constexpr, TEXTS: tl.constexpr, OUTPUT: tl.constexpr, FILTER: tl.constexpr,
):  # fmt: skip
    video, text = video_tile * VIDEOS + tl.arange(0, VIDEOS), text_tile * TEXTS + tl.arange(0, TEXTS)
    wanted = video < B
    if FILTER:
        wanted = wanted & (tl.load(allowed + video, mask=wanted, other=0) != 0)
    exist = wanted[:, None] & (text < A)[None, :]
    text = text.to(tl.int64)
    if OUTPUT == "matrix":
        tl.store(scores + text[None, :] * B + video[:, None], score, mask=exist)
    elif OUTPUT == "best":
        best = tl.max(tl.where(exist, score, float("-inf")), 0)
        tl.store(scores + text * video_tiles + video_tile, best, mask=text < A)
    else:
        place = pid.to(tl.int64) * VIDEOS + tl.arange(0, VIDEOS)
        tl.store(scores + place[:, None] + tl.zeros_like(text)[None, :], tl.where(exist, score, float("-inf")))


@triton.jit(do_not_specialize=["A", "B"])
def forward_kernel(
    scores, broken, chosen, allowed,
    video_direction, video_spread, video_norm, video_weight, video_mask,
    text_direction, text_spread, text_norm, text_weight, text_mask,
    A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset, M: tl.constexpr, D: tl.constexpr,
    FRAMES: tl.constexpr, PIECES: tl.constexpr, TEXTS: tl.constexpr, WORDS: tl.constexpr,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
    GAUSSIANS: tl.constexpr, ROOT: tl.constexpr, INTER: tl.constexpr, KERNELS: tl.constexpr,
    NORMALISED: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    OUTPUT: tl.constexpr, REPAIR: tl.constexpr, FILTER: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    """Scores of one tile; REPAIR: of those tiles alone that an earlier run found ``broken``.

    OUTPUT "matrix": scores [A, B]; "best": the best score of each tile of videos, [A, tiles]; "chosen": for each text
    the scores of its own ``chosen`` tiles of videos, [A, CHOSEN, VIDEOS]. FILTER: videos whose ``allowed`` is 0 score
    −inf.
    """
    videos = (video_direction, video_spread, video_norm, video_weight, video_mask)
    texts = (text_direction, text_spread, text_norm, text_weight, text_mask)
    number = tl.program_id(0)
    if REPAIR:
        count = tl.load(broken)
        while number < count:
            _score_tile(
                tl.load(broken + 1 + number), scores, broken, chosen, allowed, videos, texts,
                A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset,
                M, D, FRAMES, PIECES, TEXTS, WORDS, DEPTH, GROUP, PRECISION,
                GAUSSIANS, ROOT, INTER, KERNELS, NORMALISED, LOW, HIGH, OUTPUT, REPAIR, FILTER, CHOSEN,
            )  # fmt: skip
            number += tl.num_programs(0)
    else:
        _score_tile(
            number, scores, broken, chosen, allowed, videos, texts,
            A, B, STEPS, low_rate, low_shift, inter_rate, inter_shift, scale, offset,
            M, D, FRAMES, PIECES, TEXTS, WORDS, DEPTH, GROUP, PRECISION,
            GAUSSIANS, ROOT, INTER, KERNELS, NORMALISED, LOW, HIGH, OUTPUT, REPAIR, FILTER, CHOSEN,
        )  # fmt: skip
