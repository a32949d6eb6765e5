/* Vectors, and the dot products of tokens.

   Plain C with the vector types of GCC and Clang; nothing here relies on -ffast-math. */

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
/* A tile of dot products, in whole groups of LANES: its sums all fit the registers, 32 or 16 of them. */
#define TILE_ROWS 2
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_COLUMNS 8
#else
#define TILE_COLUMNS 4
#endif
#define TILE (TILE_ROWS * TILE_COLUMNS)
#define CACHE_LINE 64

#define INLINE static inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Keeps a compiler from loading a value anew for each of its uses, which would take more time than the sums. */
#if defined(__x86_64__)
#define IN_REGISTER(value) __asm__("" : "+v"(value))
#else
#define IN_REGISTER(value) (void)(value)
#endif

INLINE vec same(float value) { return (vec){0} + value; }

INLINE vec choose(ivec condition, vec yes, vec no) {
    return (vec)((condition & (ivec)yes) | (~condition & (ivec)no));
}

INLINE vec maximum(vec a, vec b) { return choose(a > b, a, b); }

/* 2^x, for x <= 0; zero below 2^-126. Relative error under 1e-7. */
INLINE vec power_of_two(vec x) {
    /* Added to a number, it leaves the nearest integer plus 127 in the lowest bits. */
    const vec round = same(12582912.0f + 127.0f);
    x = maximum(x, same(-127.0f));
    const vec shifted = x + round;
    const vec rest = x - (shifted - round);
    vec value = same(1.5353362e-4f);
    value = value * rest + 1.3398875e-3f;
    value = value * rest + 9.6184369e-3f;
    value = value * rest + 5.5503324e-2f;
    value = value * rest + 2.4022648e-1f;
    value = value * rest + 6.9314718e-1f;
    value = value * rest + 1.0f;
    return value * (vec)((ivec)shifted << 23);
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#define PICK4(f, h, l) f(h, l), f(h, l + 1), f(h, l + 2), f(h, l + 3)
#define LOWER(h, l) ((((l) & (h)) ? LANES : 0) + ((l) & ~(h)))
#define UPPER(h, l) ((((l) & (h)) ? LANES : 0) + ((l) | (h)))
#define FOLD(a, b, h) (SHUFFLE(a, b, PICK(LOWER, h)) + SHUFFLE(a, b, PICK(UPPER, h)))
#define FOLD_ALL(part, h) \
    for (int fold = 0; fold < (h); fold++) part[fold] = FOLD(part[fold], part[fold + (h)], h)
#if LANES == 16
#define PICK(f, h) PICK4(f, h, 0), PICK4(f, h, 4), PICK4(f, h, 8), PICK4(f, h, 12)
#define FOLDS(part) FOLD_ALL(part, 8); FOLD_ALL(part, 4); FOLD_ALL(part, 2); FOLD_ALL(part, 1)
#elif LANES == 8
#define PICK(f, h) PICK4(f, h, 0), PICK4(f, h, 4)
#define FOLDS(part) FOLD_ALL(part, 4); FOLD_ALL(part, 2); FOLD_ALL(part, 1)
#else
#define PICK(f, h) PICK4(f, h, 0)
#define FOLDS(part) FOLD_ALL(part, 2); FOLD_ALL(part, 1)
#endif

/* The sums of LANES vectors, each over its lanes, as one vector. */
INLINE vec sums(vec *part) {
    FOLDS(part);
    return part[0];
}

INLINE vec load(const float *from) { return *(const anywhere *)from; }

/* What the last numbers of a width that is no multiple of LANES add to a tile. */
static void add_rest(const float **row, const float **column, int rows, int64_t start, int64_t width, int distance,
                     float *result) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j++)
            for (int64_t k = start; k < width; k++) {
                const float x = row[i][k], y = column[j][k];
                result[i * TILE_COLUMNS + j] += distance ? (x - y) * (x - y) : x * y;
            }
}

/* Dot products (or squared distances) of some rows with TILE_COLUMNS columns, into [rows][TILE_COLUMNS]. */
INLINE void tile(const float **row, const float **column, int rows, int64_t width, int distance, float *result) {
    vec part[TILE];
#pragma GCC unroll 32
    for (int i = 0; i < TILE; i++) part[i] = same(0);
    const int64_t whole = width - width % LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        vec x[TILE_ROWS];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = load(row[i] + k);
#pragma GCC unroll 8
        for (int j = 0; j < TILE_COLUMNS; j++) {
            vec y = load(column[j] + k);
            IN_REGISTER(y);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                const vec difference = x[i] - y;
                part[i * TILE_COLUMNS + j] += distance ? difference * difference : x[i] * y;
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows * TILE_COLUMNS; i += LANES) *(anywhere *)(result + i) = sums(part + i);
    if (whole < width) add_rest(row, column, rows, whole, width, distance, result);
}
