/* Operators of a training step that PyTorch runs slowly on a CPU: batch-norm with SiLU in one go (PyTorch has two
 * operators, each with passes over the memory of its own), and others in the files included below. Images lie channels
 * last: (rows, channels) with rows = batch * height * width.
 *
 * Values are float or bfloat16 (kept as uint16_t); sums are float over short runs and double over the whole, and each
 * thread's part has a fixed place, so that the same inputs on the same number of threads give the same bits.
 *
 * Vectors are those of the compiler (GCC, Clang), so there is one source for every instruction set.
 */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define RUN 64 /* rows that are summed in float before they go to the double sums */
#define ROWS 8 /* the same for rows of an image */

static inline void split(int64_t total, int part, int parts, int64_t *from, int64_t *to) {
    int64_t each = total / parts, more = total % parts;
    *from = part * each + (part < more ? part : more);
    *to = *from + each + (part < more);
}

#define JOIN3(a, b, c) a##_##b##x##c
#define JOIN(a, b, c) JOIN3(a, b, c)
#define NAME(x) JOIN(x, TYPE, LANES)

static inline float f32_of_byte(uint8_t byte) { return byte; }

static inline uint16_t bf16_of_byte(uint8_t byte) {
    union {
        float value;
        uint32_t bits;
    } of = {.value = byte};
    return (uint16_t)(of.bits >> 16);
}

#define TYPE f32
#include "patches.inc"
#undef TYPE
#define TYPE bf16
#include "patches.inc"
#undef TYPE

#define LANES 16
#include "vectors.inc"
#define TYPE f32
#include "norm_silu.inc"
#undef TYPE
#define TYPE bf16
#include "norm_silu.inc"
#undef TYPE
#include "depthwise.inc"
#undef LANES

/* Channel numbers that only 8 divides. */
#define LANES 8
#include "vectors.inc"
#define TYPE f32
#include "norm_silu.inc"
#undef TYPE
#define TYPE bf16
#include "norm_silu.inc"
#include "depthwise.inc"
