/* Rounding tokens to bytes, whose products are faster than those of floats; ``Note`` says what is kept beside them. */

#include <stdlib.h>

#include "cpu_products.h"

/* Shorter runs than this are not worth a vector. */
#define LEAST_RUN 8

/* By chance, but always the same. */
static void signs(float *sign, int64_t width) {
    uint32_t chance = 1;
    for (int64_t k = 0; k < width; k++) {
        chance = chance * 1664525u + 1013904223u;
        sign[k] = chance >> 31 ? 1.0f : -1.0f;
    }
}

/* Turn a token so that no few of its numbers stand out: products of turned tokens are the same, and rounding, whose
   step the largest number sets, hurts less. A Hadamard transform, as far as the width can be halved. */
static void turn(float *value, int64_t width) {
    for (int64_t run = width; run % 2 == 0 && run / 2 >= LEAST_RUN; run /= 2)
        for (float *a = value; a < value + width; a += run) {
            float *b = a + run / 2;
            for (int64_t k = 0; k < run / 2; k++) {
                const float sum = a[k] + b[k], difference = a[k] - b[k];
                a[k] = sum * 0.70710678f;
                b[k] = difference * 0.70710678f;
            }
        }
}

/* ``value`` is room for a token; ``sign`` as above. */
static void round_token(const float *from, const float *centre, const float *sign, int64_t width, float *value,
                        char *into) {
    for (int64_t k = 0; k < width; k++) value[k] = (centre ? from[k] - centre[k] : from[k]) * sign[k];
    turn(value, width);
    float most = 1e-30f;
    for (int64_t k = 0; k < width; k++) {
        const float size = value[k] < 0 ? -value[k] : value[k];
        most = size > most ? size : most;
    }
    int32_t sum = 0, squares = 0;
    memset(into, 0, (size_t)rounded_bytes(width));
    for (int64_t k = 0; k < width; k++) {
        const int32_t byte = (int32_t)__builtin_rintf(value[k] * (127.0f / most));
        into[k] = (char)byte;
        sum += byte;
        squares += byte * byte;
    }
    const float scale = most / 127.0f;
    const Note note = {scale, scale * scale * (float)squares, sum};
    memcpy(into + rounded_bytes(width), &note, sizeof(note));
}

/* Bytes that one rounded token takes; 0 where this CPU has no products of bytes. */
int64_t prota_rounded_bytes(int64_t width) {
#if defined(__AVX512VNNI__)
    return token_bytes(width, 1);
#else
    return width * 0;
#endif
}

/* Round the real ones of ``tokens`` tokens, less ``centre`` where that is given; 1 where memory ran out. */
int prota_round(const float *from, const float *centre, const uint8_t *mask, int64_t tokens, int64_t width,
                int64_t threads, char *into) {
    int failed = 0;
#pragma omp parallel num_threads((int)threads)
    {
        /* The signs stand behind the room for a token. */
        float *value = malloc(2 * (size_t)width * sizeof(float));
        if (value) {
            signs(value + width, width);
        } else {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t token = 0; token < tokens; token++)
            if (value && mask[token])
                round_token(from + token * width, centre, value + width, width, value,
                            into + token * token_bytes(width, 1));
        free(value);
    }
    return failed;
}
