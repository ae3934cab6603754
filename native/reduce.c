/* Folds on the processor. One operation per element, rounded once to its type, so that a result depends on the order of
 * the folds alone, however pieces are cut. Rules for what processors do not agree on:
 *
 *   - integers wrap around;
 *   - every NaN that comes out is the same: quiet, sign 0, payload 0;
 *   - minimum and maximum are minimumNumber and maximumNumber of IEEE 754-2019 (9.6): -0 is less than +0; a NaN is
 *     ignored if the other operand is a number.
 */
#include "engine.h"

#include <math.h>
#include <string.h>

uint32_t optcc_type_bytes(enum optcc_type type)
{
    static const uint8_t bytes[OPTCC_TYPES] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return (unsigned)type < OPTCC_TYPES ? bytes[type] : 0;
}

/* ---- integers: sums and products in uint64_t, where nothing overflows but by wrapping ---- */

#define WHOLE(NAME, T)                                                                                              \
    static void NAME(enum optcc_op op, T *own, const T *landed, uint64_t count)                                     \
    {                                                                                                               \
        switch (op) {                                                                                               \
        case OPTCC_SUM:                                                                                             \
            for (uint64_t i = 0; i < count; i++)                                                                    \
                own[i] = (T)((uint64_t)own[i] + (uint64_t)landed[i]);                                               \
            return;                                                                                                 \
        case OPTCC_PROD:                                                                                            \
            for (uint64_t i = 0; i < count; i++)                                                                    \
                own[i] = (T)((uint64_t)own[i] * (uint64_t)landed[i]);                                               \
            return;                                                                                                 \
        case OPTCC_MIN:                                                                                             \
            for (uint64_t i = 0; i < count; i++)                                                                    \
                own[i] = landed[i] < own[i] ? landed[i] : own[i];                                                   \
            return;                                                                                                 \
        default:                                                                                                    \
            for (uint64_t i = 0; i < count; i++)                                                                    \
                own[i] = landed[i] > own[i] ? landed[i] : own[i];                                                   \
        }                                                                                                           \
    }

WHOLE(fold_int8, int8_t)
WHOLE(fold_uint8, uint8_t)
WHOLE(fold_int16, int16_t)
WHOLE(fold_uint16, uint16_t)
WHOLE(fold_int32, int32_t)
WHOLE(fold_uint32, uint32_t)
WHOLE(fold_int64, int64_t)
WHOLE(fold_uint64, uint64_t)

/* ---- minimum and maximum of floats, by their bits ----
 *
 * `place` counts up as the floats do: of negative ones all bits but the sign are turned, and the sign is turned in all.
 */

#define CHOOSE(NAME, U, INFINITE)                                                                                   \
    static void NAME(int last, U *own, const U *landed, uint64_t count)                                             \
    {                                                                                                               \
        const U infinity = (U)(INFINITE), sign = (U)((U)1 << (8 * sizeof(U) - 1)), rest = (U)(sign - 1);            \
        const U quiet = (U)(infinity | (U)(infinity & (U)(0 - infinity)) >> 1);                                     \
        for (uint64_t i = 0; i < count; i++) {                                                                      \
            const U x = own[i], y = landed[i];                                                                      \
            const U p = (U)(x & sign ? ~x : x | sign), q = (U)(y & sign ? ~y : y | sign);                           \
            const int x_nan = (x & rest) > infinity, y_nan = (y & rest) > infinity;                                 \
            const U better = (U)((last ? q > p : q < p) ? y : x);                                                   \
            own[i] = x_nan && y_nan ? quiet : x_nan ? y : y_nan ? x : better;                                       \
        }                                                                                                           \
    }

CHOOSE(choose16, uint16_t, 0x7c00)
CHOOSE(choose_brain, uint16_t, 0x7f80)
CHOOSE(choose32, uint32_t, UINT32_C(0x7f800000))
CHOOSE(choose64, uint64_t, UINT64_C(0x7ff0000000000000))

/* ---- sums and products of floats ---- */

static const uint32_t QUIET32 = UINT32_C(0x7fc00000);
static const uint64_t QUIET64 = UINT64_C(0x7ff8000000000000);

#define FLOATS(NAME, T, QUIET)                                                                                      \
    static void NAME(enum optcc_op op, T *own, const T *landed, uint64_t count)                                     \
    {                                                                                                               \
        T quiet;                                                                                                    \
        memcpy(&quiet, &(QUIET), sizeof quiet);                                                                     \
        for (uint64_t i = 0; i < count; i++) {                                                                      \
            const T made = op == OPTCC_SUM ? own[i] + landed[i] : own[i] * landed[i];                               \
            own[i] = made == made ? made : quiet;                                                                   \
        }                                                                                                           \
    }

FLOATS(fold_float32, float, QUIET32)
FLOATS(fold_float64, double, QUIET64)

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* float16: by way of float32, whose 24 bits are enough that two roundings give what one would. */

static float widen_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) /* infinity or NaN */
        return float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return float_of(sign | ((rest << 13) + (112u << 23)));
    return float_of(sign | bits_of((float)rest * 0x1p-24f)); /* subnormal, exactly */
}

static uint16_t narrow_half(float value)
{
    const uint32_t bits = bits_of(value), rest = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (rest > 0x7f800000u)
        return 0x7e00;
    if (rest >= 0x47800000u) /* 65536 and more; what is rounded up to that comes out below */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000u) /* below 2^-14: whole multiples of 2^-24, half to even */
        return (uint16_t)(sign | (uint16_t)lrintf(fabsf(value) * 0x1p24f));
    return (uint16_t)(sign | (((rest + 0xfff + (rest >> 13 & 1)) >> 13) - (112u << 10)));
}

/* bfloat16: the upper half of a float32. */

static float widen_brain(uint16_t brain)
{
    return float_of((uint32_t)brain << 16);
}

static uint16_t narrow_brain(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float brain_product(float x, float y)
{
    const double exact = (double)x * (double)y; /* 16 bits: only what is subnormal in float32 would be rounded twice */
    return (float)(fabs(exact) < 0x1p-126 ? rint(exact * 0x1p133) * 0x1p-133 : exact);
}

static void fold_float16(enum optcc_op op, uint16_t *own, const uint16_t *landed, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const float x = widen_half(own[i]), y = widen_half(landed[i]);
        own[i] = narrow_half(op == OPTCC_SUM ? x + y : x * y);
    }
}

static void fold_bfloat16(enum optcc_op op, uint16_t *own, const uint16_t *landed, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const float x = widen_brain(own[i]), y = widen_brain(landed[i]);
        own[i] = narrow_brain(op == OPTCC_SUM ? x + y : brain_product(x, y));
    }
}

void optcc_fold(enum optcc_type type, enum optcc_op op, void *own, const void *landed, uint64_t count)
{
    const int chooses = op == OPTCC_MIN || op == OPTCC_MAX, last = op == OPTCC_MAX;
    switch (type) {
    case OPTCC_INT8: fold_int8(op, own, landed, count); return;
    case OPTCC_UINT8: fold_uint8(op, own, landed, count); return;
    case OPTCC_INT16: fold_int16(op, own, landed, count); return;
    case OPTCC_UINT16: fold_uint16(op, own, landed, count); return;
    case OPTCC_INT32: fold_int32(op, own, landed, count); return;
    case OPTCC_UINT32: fold_uint32(op, own, landed, count); return;
    case OPTCC_INT64: fold_int64(op, own, landed, count); return;
    case OPTCC_UINT64: fold_uint64(op, own, landed, count); return;
    case OPTCC_FLOAT16:
        if (chooses)
            choose16(last, own, landed, count);
        else
            fold_float16(op, own, landed, count);
        return;
    case OPTCC_BFLOAT16:
        if (chooses)
            choose_brain(last, own, landed, count);
        else
            fold_bfloat16(op, own, landed, count);
        return;
    case OPTCC_FLOAT32:
        if (chooses)
            choose32(last, own, landed, count);
        else
            fold_float32(op, own, landed, count);
        return;
    case OPTCC_FLOAT64:
        if (chooses)
            choose64(last, own, landed, count);
        else
            fold_float64(op, own, landed, count);
        return;
    default: return;
    }
}

/* ---- averages: every element divided once; integers are cut towards zero ---- */

#define RATIO(NAME, T, WIDE, MADE)                                                                                  \
    static void NAME(T *own, uint64_t count, WIDE by)                                                               \
    {                                                                                                               \
        for (uint64_t i = 0; i < count; i++)                                                                        \
            own[i] = (T)(MADE);                                                                                     \
    }

RATIO(ratio_int8, int8_t, int32_t, own[i] / by)
RATIO(ratio_uint8, uint8_t, uint32_t, own[i] / by)
RATIO(ratio_int16, int16_t, int32_t, own[i] / by)
RATIO(ratio_uint16, uint16_t, uint32_t, own[i] / by)
RATIO(ratio_int32, int32_t, int64_t, own[i] / by)
RATIO(ratio_uint32, uint32_t, uint64_t, own[i] / by)
RATIO(ratio_int64, int64_t, int64_t, own[i] / by)
RATIO(ratio_uint64, uint64_t, uint64_t, own[i] / by)
RATIO(ratio_float16, uint16_t, float, narrow_half(widen_half(own[i]) / by))
RATIO(ratio_bfloat16, uint16_t, float, narrow_brain(widen_brain(own[i]) / by))

#define RATIO_OF_FLOATS(NAME, T, QUIET)                                                                             \
    static void NAME(T *own, uint64_t count, T by)                                                                  \
    {                                                                                                               \
        T quiet;                                                                                                    \
        memcpy(&quiet, &(QUIET), sizeof quiet);                                                                     \
        for (uint64_t i = 0; i < count; i++) {                                                                      \
            const T made = own[i] / by;                                                                             \
            own[i] = made == made ? made : quiet;                                                                   \
        }                                                                                                           \
    }

RATIO_OF_FLOATS(ratio_float32, float, QUIET32)
RATIO_OF_FLOATS(ratio_float64, double, QUIET64)

void optcc_divide(enum optcc_type type, void *own, uint64_t count, uint32_t by)
{
    switch (by ? type : OPTCC_TYPES) {
    case OPTCC_INT8: ratio_int8(own, count, (int32_t)by); return;
    case OPTCC_UINT8: ratio_uint8(own, count, by); return;
    case OPTCC_INT16: ratio_int16(own, count, (int32_t)by); return;
    case OPTCC_UINT16: ratio_uint16(own, count, by); return;
    case OPTCC_INT32: ratio_int32(own, count, by); return;
    case OPTCC_UINT32: ratio_uint32(own, count, by); return;
    case OPTCC_INT64: ratio_int64(own, count, by); return;
    case OPTCC_UINT64: ratio_uint64(own, count, by); return;
    case OPTCC_FLOAT16: ratio_float16(own, count, (float)by); return;
    case OPTCC_BFLOAT16: ratio_bfloat16(own, count, (float)by); return;
    case OPTCC_FLOAT32: ratio_float32(own, count, (float)by); return;
    case OPTCC_FLOAT64: ratio_float64(own, count, (double)by); return;
    default: return;
    }
}
