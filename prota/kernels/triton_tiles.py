"""What the fused kernels are made of: products of a tile, Gram entries, aggregation over either side, their gradients.

A tile is all tokens of some videos with all tokens of some texts. Its rows come in pieces of 64, the height of a
matrix instruction: piece p holds frames p·F … p·F + F − 1 of 64 / F videos, in such an order (`piece_tokens`) that a
video's frames lie within one warp. A piece's values are seen as [frames, videos, texts, words] (`unfold`), sums over
frames and words then cross no warps. Padding enters as ``PADDED``, which no softmax sees and no maximum prefers.
"""

# Kernels are compiled from their source: annotations must be values, not text.
# mypy: ignore-errors

import triton
import triton.language as tl

__all__ = [
    "CAREFUL",
    "HARD",
    "PADDED",
    "SHIFTED",
    "aggregate",
    "aggregate_gradient",
    "directed",
    "enlist",
    "fold",
    "gram",
    "gram_slope",
    "pairs_exist",
    "piece_tokens",
    "products",
    "similarity",
    "similarity_slope",
    "tile_place",
    "token_vectors",
    "unfold",
    "unfold_rows",
    "word_tokens",
]

# How a softmax is taken. SHIFTED: one exponential for both directions, of values that a constant keeps in range;
# a token whose sum underflows makes the score NaN, and the tile is then repaired by CAREFUL, which subtracts each
# token's own maximum. HARD: no softmax but the maximum.
SHIFTED = tl.constexpr(0)
CAREFUL = tl.constexpr(1)
HARD = tl.constexpr(2)

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
# Below every similarity of real tokens (those of the widest Gaussians reach -1e16), and finite: 0 times it is 0.
PADDED = tl.constexpr(-1e20)
# 2^-100: what underflows beside such a sum is below single precision.
LEAST_SUM = tl.constexpr(7.888609052210118e-31)
TINY = tl.constexpr(1.1754943508222875e-38)
ROOT_EPSILON = tl.constexpr(1e-12)


@triton.jit
def tile_place(pid, text_tiles, video_tiles, GROUP: tl.constexpr):
    """Which text tile and which video tile a program works on."""
    span = GROUP * video_tiles
    first = (pid // span) * GROUP
    size = tl.minimum(text_tiles - first, GROUP)
    return first + (pid % span) % size, (pid % span) // size


@triton.jit
def piece_tokens(piece, tile, count, FRAMES: tl.constexpr, M: tl.constexpr):
    """Token numbers of a piece's rows, and which of them exist; those that do not are read from others."""
    row = tl.arange(0, 64)
    # Warps have 16 rows each; within them the frames of 16 / F videos.
    BESIDE: tl.constexpr = 16 // FRAMES
    frame, video = piece * FRAMES + row % 16 // BESIDE, tile * (64 // FRAMES) + row // 16 * BESIDE + row % BESIDE
    token = tl.minimum(video, count - 1).to(tl.int64) * M + tl.minimum(frame, M - 1)
    return token, (frame < M) & (video < count)


@triton.jit
def unfold(values, FRAMES: tl.constexpr, TEXTS: tl.constexpr, WORDS: tl.constexpr):
    """Rows x columns of a piece as [frames, videos, texts, words]."""
    values = tl.reshape(values, [4, FRAMES, 16 // FRAMES, TEXTS * WORDS])
    return tl.reshape(tl.permute(values, (1, 0, 2, 3)), [FRAMES, 64 // FRAMES, TEXTS, WORDS])


@triton.jit
def unfold_rows(values, FRAMES: tl.constexpr):
    """Rows of a piece as [frames, videos, 1]."""
    values = tl.reshape(values, [4, FRAMES, 16 // FRAMES])
    return tl.reshape(tl.permute(values, (1, 0, 2)), [FRAMES, 64 // FRAMES, 1])


@triton.jit
def fold(values, FRAMES: tl.constexpr, COLUMNS: tl.constexpr):
    """The inverse of `unfold`; with one column, [64] of [frames, videos]."""
    values = tl.reshape(values, [FRAMES, 4, 16 // FRAMES, COLUMNS])
    values = tl.permute(values, (1, 0, 2, 3))
    if COLUMNS == 1:
        return tl.reshape(values, [64])
    else:
        return tl.reshape(values, [64, COLUMNS])


@triton.jit
def word_tokens(tile, count, TEXTS: tl.constexpr, WORDS: tl.constexpr):
    """Token numbers of a tile's columns, and which of them exist."""
    column = tl.arange(0, TEXTS * WORDS)
    text = tile * TEXTS + column // WORDS
    return tl.minimum(text, count - 1).to(tl.int64) * WORDS + column % WORDS, text < count


@triton.jit
def pairs_exist(video_tile, text_tile, A, B, VIDEOS: tl.constexpr, TEXTS: tl.constexpr):
    """Which of a tile's pairs [videos, texts] there are; the last tiles may reach beyond the end."""
    video, text = video_tile * VIDEOS + tl.arange(0, VIDEOS), text_tile * TEXTS + tl.arange(0, TEXTS)
    return (video < B)[:, None] & (text < A)[None, :]


@triton.jit
def enlist(broken, pid, least):
    """Put a tile on the list of those that underflowed: its length, then their numbers in any order."""
    if least < LEAST_SUM:
        place = tl.atomic_add(broken, 1)
        tl.store(broken + 1 + place, pid)


@triton.jit
def products(
    accs, videos, texts, rows, columns, STEPS, D: tl.constexpr, DEPTH: tl.constexpr, PIECES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the dot products of all token pairs of the tile to its pieces."""
    k = tl.arange(0, DEPTH)
    at = texts + columns[None, :] * D + k[:, None]
    # A bound that is not known in advance keeps the loop a loop; the interpreter only knows those that are.
    for start in range(0, D if INTERPRETED else STEPS, DEPTH):
        inside = k < D - start
        if D % DEPTH == 0:
            words = tl.load(at + start)
        else:
            words = tl.load(at + start, mask=inside[:, None], other=0.0)
        sums = ()
        for p in tl.static_range(PIECES):
            here = videos + rows[p][:, None] * D + k[None, :] + start
            if D % DEPTH == 0:
                frames = tl.load(here)
            else:
                frames = tl.load(here, mask=inside[None, :], other=0.0)
            sums = sums + (tl.dot(frames, words, accs[p], input_precision=PRECISION),)
        accs = sums
    return accs


@triton.jit
def gram(cosines, scale, KERNELS: tl.constexpr):
    """Eq. 3: the sum of the Gaussian kernels, by one exponential and repeated squaring; 0 kernels: dot products."""
    if KERNELS == 0:
        return cosines
    else:
        kernel = tl.exp2(tl.minimum(2 * scale - 2 * scale * cosines, 0.0))
        total = kernel
        for _ in tl.static_range(KERNELS - 1):
            kernel = kernel * kernel
            total += kernel
        return total


@triton.jit
def gram_slope(cosines, scale, KERNELS: tl.constexpr):
    """The derivative of `gram`."""
    if KERNELS == 0:
        return tl.full(cosines.shape, 1.0, tl.float32)
    else:
        kernel = tl.exp2(tl.minimum(2 * scale - 2 * scale * cosines, 0.0))
        total = kernel
        power = 1.0
        for _ in tl.static_range(KERNELS - 1):
            kernel = kernel * kernel
            power = power * 2
            total += power * kernel
        # ln 2 turns the base of the exponential back.
        return tl.where(cosines > 1, 0.0, total * (-2 * 0.6931471805599453 * scale))


@triton.jit
def similarity(values, offset, ROOT: tl.constexpr):
    """From 1 − W2²/2 (or the cosine) to s."""
    if ROOT:
        # Unlike a maximum with 0, this keeps what is not a number.
        return offset - tl.sqrt(tl.where(values > 1, 0.0, 2 - 2 * values) + ROOT_EPSILON)
    else:
        return values


@triton.jit
def similarity_slope(values, ROOT: tl.constexpr):
    if ROOT:
        slope = 1 / tl.sqrt(tl.maximum(2 - 2 * values, 0.0) + ROOT_EPSILON)
        return tl.where(values > 1, 0.0, slope)
    else:
        return tl.full(values.shape, 1.0, tl.float32)


@triton.jit
def _inverse(total):
    """1 / total, by the cheapest instruction that is good to 2^-22."""
    root = tl.rsqrt(total)
    return root * root


@triton.jit
def aggregate(
    values,
    biases,
    blank_frames,
    blank,
    temperature,
    MODE: tl.constexpr,
    PIECES: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Eq. 2 and 6 in both directions: each word over frames, each frame over words.

    Values [frames, videos, texts, words] of all pieces, and what is added to them (SHIFTED: to their exponents):
    PADDED at padding. ``blank`` is 1 where a token is padding, else 0. Returns of the words [videos, texts, words],
    and of each piece's frames [frames, videos, texts]: the aggregate, the inverse of its sum of exponentials (HARD: of
    the number of maxima), its maximum (SHIFTED: nothing of use); and the least sum, unless none can underflow
    (BOUNDED).
    """
    top, tops = blank, blank_frames
    if MODE != SHIFTED:
        highest = values[0] + biases[0]
        tops = (tl.max(highest, 3),)
        for p in tl.static_range(1, PIECES):
            biased = values[p] + biases[p]
            highest = tl.maximum(highest, biased)
            tops = tops + (tl.max(biased, 3),)
        top = tl.max(highest, 0)
    # What means are measured from: where one value alone counts, its mean is then that value to the last bit.
    start = tl.where(blank > 0, 0.0, top)
    inverses, means = (), ()
    total = tl.zeros(values[0].shape, tl.float32)
    weighted = total
    smallest = tl.full(blank_frames[0].shape, 1.0, tl.float32)
    for p in tl.static_range(PIECES):
        for_words, for_frames = shares(values[p], biases[p], top, tops[p], temperature, MODE)
        # Pieces are added before the sum over frames crosses threads.
        total += for_words
        if MODE == CAREFUL:
            weighted += for_words * (values[p] - start[None, :, :, :])
        else:
            weighted += for_words * values[p]
        of_frames = tl.sum(for_frames, 3) + blank_frames[p]
        smallest = tl.minimum(smallest, of_frames)
        inverses = inverses + (_inverse(of_frames),)
        if MODE == CAREFUL:
            start_p = tl.where(blank_frames[p] > 0, 0.0, tops[p])
            means = means + (start_p + inverses[p] * tl.sum(for_frames * (values[p] - start_p[:, :, :, None]), 3),)
        else:
            means = means + (inverses[p] * tl.sum(for_frames * values[p], 3),)
    of_words = tl.sum(total, 0) + blank
    inverse = _inverse(of_words)
    least = 1.0
    if MODE == SHIFTED and not BOUNDED:
        least = tl.minimum(tl.min(smallest), tl.min(of_words))
    mean = inverse * tl.sum(weighted, 0)
    if MODE == CAREFUL:
        mean += start
    return mean, inverse, top, means, inverses, tops, least


@triton.jit
def shares(values, bias, top, top_frames, temperature, MODE: tl.constexpr):
    """Weights of a piece's values, before they are divided by their sums, for its words and for its frames."""
    if MODE == SHIFTED:
        e = tl.exp2(values * temperature + bias)
        return e, e
    else:
        words, frames = values + bias - top[None, :, :, :], values + bias - top_frames[:, :, :, None]
        if MODE == HARD:
            return (words == 0).to(tl.float32), (frames == 0).to(tl.float32)
        else:
            return tl.exp2(words * temperature), tl.exp2(frames * temperature)


@triton.jit
def aggregate_gradient(
    x, bias, mean, inverse, top, into, mean_frames, inverse_frames, top_frames, into_frames,
    temperature, MODE: tl.constexpr,
):  # fmt: skip
    """The gradient of a piece's values, from the gradients ``into`` its words' and ``into_frames`` its frames'
    aggregates."""
    for_words, for_frames = shares(x, bias, top, top_frames, temperature, MODE)
    share, share_frames = for_words * inverse[None, :, :, :], for_frames * inverse_frames[:, :, :, None]
    if MODE == HARD:
        return share * into[None, :, :, :] + share_frames * into_frames[:, :, :, None]
    else:
        # In base 2; the softmax moves with its values: d(Σ x p) = p (1 + λ (x − mean)) dx.
        rate = temperature * 0.6931471805599453
        if MODE == CAREFUL:
            # Values may be large: multiplied out, as below, they would cancel.
            words = into[None, :, :, :] * (1 + rate * (x - mean[None, :, :, :]))
            frames = into_frames[:, :, :, None] * (1 + rate * (x - mean_frames[:, :, :, None]))
        else:
            level = into * (1 - rate * mean)
            level_frames = into_frames * (1 - rate * mean_frames)
            words = level[None, :, :, :] + (rate * into)[None, :, :, :] * x
            frames = level_frames[:, :, :, None] + (rate * into_frames)[:, :, :, None] * x
        return share * words + share_frames * frames


@triton.jit
def token_vectors(half_norms, weights, masks, tokens, exist):
    """Of each token: what its padding adds to an exponent, half its squared spread, its weight, whether it is real."""
    real = exist & (tl.load(masks + tokens) != 0)
    bias = tl.where(real, 0.0, PADDED)
    return bias, tl.load(half_norms + tokens) - bias, tl.where(real, tl.load(weights + tokens), 0.0), real


@triton.jit
def directed(low, lows, weight, weights, NORMALISED: tl.constexpr, PIECES: tl.constexpr):
    """Eq. 8, [videos, texts]; then, for its gradient where weights are divided by their sum, of words and of frames:
    that sum and the weighted mean."""
    words, frames = tl.sum(low * weight, 2), tl.sum(lows[0] * weights[0], 0)
    for p in tl.static_range(1, PIECES):
        frames += tl.sum(lows[p] * weights[p], 0)
    of_words, of_frames = words, frames
    if NORMALISED:
        of_words, of_frames = tl.sum(weight, 2), tl.sum(weights[0], 0)
        for p in tl.static_range(1, PIECES):
            of_frames += tl.sum(weights[p], 0)
        of_words, of_frames = tl.maximum(of_words, TINY), tl.maximum(of_frames, TINY)
        words, frames = words / of_words, frames / of_frames
    return 0.5 * (words + frames), of_words, of_frames, words, frames
