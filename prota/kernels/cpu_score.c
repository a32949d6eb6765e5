/* ProTA's score of every text with every video in one pass; cpu.py prepares the arguments and says what is supported.

   One side's items are the rows, the other side's are the lanes: LANES of them, of similar length, are scored at once
   against one row item. First the dot products of their real tokens, each over D in vectors of LANES numbers; then
   everything else, Eq. 1 to 8 of the paper, with one item per lane of a vector, so that no sum runs across lanes.
   A pair tensor is [row token][lane token][lane] and never leaves the caches. */

#include <stdlib.h>

#include "cpu_products.h"

/* Stands for -infinity where there is no token: finite, so that zero times it is zero. */
#define PADDING -1e30f
/* Multiplications that are worth a thread: some 50 microseconds. */
#define LEAST_WORK 2000000

enum { COSINE, SQUARED, OFFSET, PRINTED };
enum { NO_GRAM, GAUSSIAN, DOT };

typedef struct {
    const float *direction; /* [items, tokens, width] */
    const float *spread;    /* the same, or NULL where tokens are points */
    const float *weight;    /* [items, tokens] */
    const uint8_t *mask;    /* [items, tokens] */
    const int64_t *order;   /* [items], by length */
    int64_t items, tokens;
} Side;

typedef struct {
    int32_t similarity, gram, kernels, normalised;
    float offset, exponent; /* exponent: the widest kernel is 2^(exponent * squared distance) */
    float lambda, xi;       /* times log2(e); 0 stands for the hard maximum */
} Settings;

/* One group of lane items: their tokens as columns of the dot products. */
typedef struct {
    int64_t depth, columns;
    const float **direction, **spread; /* [columns], padded to whole tiles by repeating the last */
    int64_t *place;                    /* [columns], where in [depth][LANES] a column's product belongs */
    vec *weight;                       /* [depth] */
} Group;

/* What one thread writes into. */
typedef struct {
    Group group;
    const float **direction, **spread; /* [row tokens] */
    float *weight;
    vec *cosine, *similarity;                     /* [row tokens][depth] */
    vec *row_low, *row_inter;                     /* [row tokens] */
    vec *lane_low, *lane_inter, *total, *product; /* [depth] */
} Work;

/* Ask for a token that will be needed soon. */
INLINE void prefetch(const float *token, int64_t width) {
    for (int64_t k = 0; k < width; k += CACHE_LINE / (int64_t)sizeof(float)) __builtin_prefetch(token + k, 0, 2);
}

/* All products of one row item with a group, into [rows][depth][LANES]; ``fetch``: the columns still lie in memory. */
INLINE void all_tiles(const float **row, const float **column, int64_t rows, const Group *group, int64_t width,
                      int distance, int fetch, vec *into) {
    float result[TILE];
    const int64_t stride = group->depth * LANES;
    for (int64_t j = 0; j < group->columns; j += TILE_COLUMNS) {
        const int64_t columns = group->columns - j < TILE_COLUMNS ? group->columns - j : TILE_COLUMNS;
        /* Every tile of these columns asks for some of the next ones. */
        const int64_t share = (TILE_COLUMNS * TILE_ROWS + rows - 1) / rows;
        int64_t next = j + TILE_COLUMNS;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const int64_t some = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
            for (int64_t c = 0; fetch && c < share; c++, next++)
                if (next < j + 2 * TILE_COLUMNS && next < group->columns) prefetch(column[next], width);
            if (some == TILE_ROWS)
                tile(row + i, column + j, TILE_ROWS, width, distance, result);
            else
                tile(row + i, column + j, 1, width, distance, result);
            float *target = (float *)into + i * stride;
            for (int64_t r = 0; r < some; r++)
                for (int64_t c = 0; c < columns; c++) {
                    float product = result[r * TILE_COLUMNS + c];
                    /* One by one: compilers like the instruction that scatters a vector, which is slower. */
                    IN_REGISTER(product);
                    target[r * stride + group->place[j + c]] = product;
                }
        }
    }
}

/* One function for either kind of product. */
static void dots(const float **row, int64_t rows, const Group *group, int64_t width, int fetch, vec *into) {
    all_tiles(row, group->direction, rows, group, width, 0, fetch, into);
}

static void distances(const float **row, int64_t rows, const Group *group, int64_t width, int fetch, vec *into) {
    all_tiles(row, group->spread, rows, group, width, 1, fetch, into);
}

/* Sum over j of x_j softmax_j(temperature x_j), along the rows' tokens and along the lanes' tokens at once. */
static void aggregate(const vec *value, int64_t rows, int64_t depth, float temperature, vec *row_result,
                      vec *lane_result, vec *total, vec *product) {
    for (int64_t j = 0; j < depth; j++) lane_result[j] = same(PADDING);
    for (int64_t i = 0; i < rows; i++) {
        vec most = same(PADDING);
        for (int64_t j = 0; j < depth; j++) {
            const vec x = value[i * depth + j];
            most = maximum(most, x);
            lane_result[j] = maximum(lane_result[j], x);
        }
        row_result[i] = most;
    }
    if (temperature == 0) return;
    for (int64_t j = 0; j < depth; j++) total[j] = product[j] = same(0);
    for (int64_t i = 0; i < rows; i++) {
        const vec most = row_result[i];
        vec row_total = same(0), row_product = same(0);
        for (int64_t j = 0; j < depth; j++) {
            const vec x = value[i * depth + j];
            const vec along_row = power_of_two(temperature * (x - most));
            const vec along_lane = power_of_two(temperature * (x - lane_result[j]));
            row_total += along_row;
            row_product += along_row * x;
            total[j] += along_lane;
            product[j] += along_lane * x;
        }
        row_result[i] = row_product / row_total;
    }
    for (int64_t j = 0; j < depth; j++) lane_result[j] = product[j] / total[j];
}

/* Squared distances of spreads become similarities, in place. */
static void similarities(const vec *cosine, vec *similarity, int64_t count, const Settings *settings) {
    for (int64_t i = 0; i < count; i++) {
        if (settings->similarity == SQUARED) {
            similarity[i] = cosine[i] - 0.5f * similarity[i];
            continue;
        }
        const vec distance = 2.0f - 2.0f * cosine[i] + similarity[i];
        /* Unlike a maximum with 0, this keeps what is not a number. */
        const vec squared = choose(distance < 0, same(0), distance) + 1e-12f;
        vec root = squared;
        for (int l = 0; l < LANES; l++) root[l] = __builtin_sqrtf(squared[l]);
        const vec start = same(settings->similarity == OFFSET ? settings->offset : 0);
        similarity[i] = choose(cosine[i] > PADDING, start - root, cosine[i]);
    }
}

/* Cosines become the mean of the Gaussian kernels, in place: one exponential, repeatedly squared. */
static void gaussian_kernels(vec *cosine, int64_t count, const Settings *settings) {
    for (int64_t i = 0; i < count; i++) {
        vec kernel = power_of_two(settings->exponent * maximum(2.0f - 2.0f * cosine[i], same(0)));
        vec sum = kernel;
        for (int k = 1; k < settings->kernels; k++) {
            kernel *= kernel;
            sum += kernel;
        }
        cosine[i] = choose(cosine[i] > PADDING, sum / (float)settings->kernels, cosine[i]);
    }
}

/* Sum over tokens of low * weight * inter, divided by the sum of the weights where they are normalised. */
INLINE vec weighted(const vec *low, const vec *inter, const vec *lane_weight, const float *row_weight, int64_t count,
                    int normalised) {
    vec sum = same(0), weights = same(0);
    for (int64_t i = 0; i < count; i++) {
        vec weight = lane_weight ? lane_weight[i] : same(row_weight[i]);
        if (inter) weight *= inter[i];
        weights += weight;
        sum += weight * low[i];
    }
    return normalised ? sum / maximum(weights, same(1.17549435e-38f)) : sum;
}

/* The scores of one row item with a group. */
static vec score(Work *work, int64_t rows, int64_t width, const Settings *settings, int fetch) {
    const Group *group = &work->group;
    const int64_t depth = group->depth, count = rows * depth;
    vec *cosine = work->cosine, *similarity = cosine;
    for (int64_t i = 0; i < count; i++) cosine[i] = same(PADDING);
    dots(work->direction, rows, group, width, fetch, cosine);
    if (settings->similarity != COSINE) {
        similarity = work->similarity;
        memset(similarity, 0, (size_t)count * sizeof(vec));
        distances(work->spread, rows, group, width, fetch, similarity);
        similarities(cosine, similarity, count, settings);
    }
    aggregate(similarity, rows, depth, settings->lambda, work->row_low, work->lane_low, work->total, work->product);
    const vec *row_inter = NULL, *lane_inter = NULL;
    if (settings->gram != NO_GRAM) {
        if (settings->gram == GAUSSIAN) gaussian_kernels(cosine, count, settings);
        aggregate(cosine, rows, depth, settings->xi, work->row_inter, work->lane_inter, work->total, work->product);
        row_inter = work->row_inter;
        lane_inter = work->lane_inter;
    }
    const vec row = weighted(work->row_low, row_inter, NULL, work->weight, rows, settings->normalised);
    const vec lane = weighted(work->lane_low, lane_inter, group->weight, NULL, depth, settings->normalised);
    return 0.5f * (row + lane);
}

/* Lay out the tokens of ``count`` lane items, the next in order of length. */
static void gather_group(Group *group, const Side *side, int64_t first, int64_t count, int64_t width) {
    group->depth = group->columns = 0;
    for (int64_t j = 0; j < side->tokens; j++) group->weight[j] = same(0);
    int64_t token = 0;
    for (int64_t lane = 0; lane < count; lane++) {
        int64_t depth = 0;
        const int64_t start = side->order[first + lane] * side->tokens;
        for (int64_t j = start; j < start + side->tokens; j++) {
            if (!side->mask[j]) continue;
            token = j;
            group->direction[group->columns] = side->direction + token * width;
            if (side->spread) group->spread[group->columns] = side->spread + token * width;
            group->place[group->columns++] = depth * LANES + lane;
            group->weight[depth++][lane] = side->weight[token];
        }
        if (depth > group->depth) group->depth = depth;
    }
    for (int64_t j = group->columns; j % TILE_COLUMNS; j++) {
        group->direction[j] = side->direction + token * width;
        if (side->spread) group->spread[j] = side->spread + token * width;
    }
}

/* Lay out the tokens of one row item; their number. */
static int64_t gather_row(Work *work, const Side *side, int64_t item, int64_t width) {
    int64_t rows = 0;
    for (int64_t token = item * side->tokens; token < (item + 1) * side->tokens; token++) {
        if (!side->mask[token]) continue;
        work->direction[rows] = side->direction + token * width;
        if (side->spread) work->spread[rows] = side->spread + token * width;
        work->weight[rows++] = side->weight[token];
    }
    return rows;
}

/* Give each part its place in one allocation, and say how large that must be. */
static size_t lay_out(Work *work, uintptr_t memory, int64_t row_tokens, int64_t lane_tokens) {
    size_t used = 0;
    const int64_t columns = lane_tokens * LANES + TILE_COLUMNS;
#define PART(name, count) \
    work->name = (void *)(memory + used); \
    used += ((size_t)(count) * sizeof(*work->name) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE
    PART(cosine, row_tokens * lane_tokens);
    PART(similarity, row_tokens * lane_tokens);
    PART(row_low, row_tokens);
    PART(row_inter, row_tokens);
    PART(lane_low, lane_tokens);
    PART(lane_inter, lane_tokens);
    PART(total, lane_tokens);
    PART(product, lane_tokens);
    PART(group.weight, lane_tokens);
    PART(group.place, columns);
    PART(weight, row_tokens);
    PART(direction, row_tokens);
    PART(spread, row_tokens);
    PART(group.direction, columns);
    PART(group.spread, columns);
#undef PART
    return used;
}

/* Score all pairs into result[row * row_stride + lane * lane_stride]; 1 where memory ran out. */
int prota_score(const Side *rows, const Side *lanes, int64_t width, const Settings *settings, int64_t threads,
                float *result, int64_t row_stride, int64_t lane_stride) {
    /* Waiting for a thread takes longer than little work. */
    const int64_t work_for = 1 + rows->items * rows->tokens * lanes->items * lanes->tokens * width / LEAST_WORK;
    if (threads > work_for) threads = work_for;
    /* A task is one group with enough row items that the group, once in the cache, is used often. */
    const int64_t chunk = 16, chunks = (rows->items + chunk - 1) / chunk;
    /* Few pairs: smaller groups rather than idle threads. */
    const int64_t fair = (lanes->items * chunks + threads - 1) / threads, size = fair < LANES ? fair : LANES;
    const int64_t groups = (lanes->items + size - 1) / size;
    int failed = 0;
#pragma omp parallel num_threads((int)threads)
    {
        Work work;
        char *memory = aligned_alloc(CACHE_LINE, lay_out(&work, 0, rows->tokens, lanes->tokens));
        if (memory) {
            lay_out(&work, (uintptr_t)memory, rows->tokens, lanes->tokens);
        } else {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t task = 0; task < groups * chunks; task++) {
            if (!memory) continue;
            const int64_t first = task / chunks * size, start = task % chunks * chunk;
            const int64_t count = lanes->items - first < size ? lanes->items - first : size;
            const int64_t stop = rows->items < start + chunk ? rows->items : start + chunk;
            gather_group(&work.group, lanes, first, count, width);
            for (int64_t item = start; item < stop; item++) {
                const int64_t tokens = gather_row(&work, rows, item, width);
                const vec scores = score(&work, tokens, width, settings, item == start);
                for (int64_t lane = 0; lane < count; lane++)
                    result[item * row_stride + lanes->order[first + lane] * lane_stride] = scores[lane];
            }
        }
        free(memory);
    }
    return failed;
}
