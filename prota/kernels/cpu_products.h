/* Vectors, and the dot products of tokens: in float32, or of tokens rounded to bytes.

   Plain C with the vector types of GCC and Clang; nothing here relies on -ffast-math. */

#include <stdint.h>
#include <string.h>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

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

/* Some tokens; the last three are of tokens rounded to bytes. */
typedef struct {
    const char **at;
    float *scale;   /* what one step is worth */
    float *norm;    /* squared length */
    int32_t *bytes; /* their sum */
} Tokens;

/* What follows the bytes of a rounded token. */
typedef struct {
    float scale, norm;
    int32_t bytes;
} Note;

INLINE int64_t rounded_bytes(int64_t width) { return (width + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

/* Bytes from one token to the next. */
INLINE int64_t token_bytes(int64_t width, int rounded) {
    return rounded ? rounded_bytes(width) + CACHE_LINE : width * (int64_t)sizeof(float);
}

INLINE void put_token(Tokens *tokens, int64_t place, const void *all, int64_t token, int64_t width, int rounded) {
    tokens->at[place] = (const char *)all + token * token_bytes(width, rounded);
    if (!rounded) return;
    const Note *note = (const Note *)(tokens->at[place] + rounded_bytes(width));
    tokens->scale[place] = note->scale;
    tokens->norm[place] = note->norm;
    tokens->bytes[place] = note->bytes;
}

INLINE Tokens tokens_from(Tokens tokens, int64_t place) {
    return (Tokens){tokens.at + place, tokens.scale + place, tokens.norm + place, tokens.bytes + place};
}

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

INLINE ivec integer_sums(ivec *part) {
    FOLDS(part);
    return part[0];
}

INLINE vec load(const char *from, int64_t place) { return *(const anywhere *)(from + place * (int64_t)sizeof(float)); }

/* What the last numbers of a width that is no multiple of LANES add to a tile. */
static void add_rest(const Tokens *row, const Tokens *column, int rows, int64_t start, int64_t width, int distance,
                     float *result) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j++)
            for (int64_t k = start; k < width; k++) {
                const float x = ((const float *)row->at[i])[k], y = ((const float *)column->at[j])[k];
                result[i * TILE_COLUMNS + j] += distance ? (x - y) * (x - y) : x * y;
            }
}

/* Dot products (or squared distances) of some rows with TILE_COLUMNS columns, into [rows][TILE_COLUMNS]. */
INLINE void float_tile(const Tokens *row, const Tokens *column, int rows, int64_t width, int distance, float *result) {
    vec part[TILE];
#pragma GCC unroll 32
    for (int i = 0; i < TILE; i++) part[i] = same(0);
    const int64_t whole = width - width % LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        vec x[TILE_ROWS];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) x[i] = load(row->at[i], k);
#pragma GCC unroll 8
        for (int j = 0; j < TILE_COLUMNS; j++) {
            vec y = load(column->at[j], k);
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

#if defined(__AVX512VNNI__)
/* The same of rounded tokens. */
INLINE void rounded_tile(const Tokens *row, const Tokens *column, int rows, int64_t width, int distance,
                         float *result) {
    ivec part[TILE];
#pragma GCC unroll 32
    for (int i = 0; i < TILE; i++) part[i] = (ivec){0};
    for (int64_t k = 0; k < rounded_bytes(width); k += CACHE_LINE) {
        __m512i x[TILE_ROWS];
        /* The instruction takes one side without its sign: 128 is added here and taken away below. */
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            x[i] = _mm512_xor_si512(_mm512_loadu_si512(row->at[i] + k), _mm512_set1_epi8(-128));
#pragma GCC unroll 8
        for (int j = 0; j < TILE_COLUMNS; j++) {
            __m512i y = _mm512_loadu_si512(column->at[j] + k);
            IN_REGISTER(y);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                ivec *sum = part + i * TILE_COLUMNS + j;
                *sum = (ivec)_mm512_dpbusd_epi32((__m512i)*sum, x[i], y);
            }
        }
    }
    int32_t total[TILE] __attribute__((aligned(CACHE_LINE)));
#pragma GCC unroll 4
    for (int i = 0; i < rows * TILE_COLUMNS; i += LANES) *(ivec *)(total + i) = integer_sums(part + i);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        float *restrict into = result + i * TILE_COLUMNS;
        const float scale = row->scale[i], norm = row->norm[i];
        for (int j = 0; j < TILE_COLUMNS; j++) {
            const float steps = (float)(total[i * TILE_COLUMNS + j] - 128 * column->bytes[j]);
            const float dot = steps * (scale * column->scale[j]);
            into[j] = distance ? norm + column->norm[j] - 2.0f * dot : dot;
        }
    }
}
#endif

INLINE void tile(const Tokens *row, const Tokens *column, int rows, int64_t width, int distance, int rounded,
                 float *result) {
#if defined(__AVX512VNNI__)
    if (rounded) {
        rounded_tile(row, column, rows, width, distance, result);
        return;
    }
#endif
    (void)rounded;
    float_tile(row, column, rows, width, distance, result);
}
