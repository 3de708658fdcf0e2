/* Numbers of one type as numbers of another type, and decimals as numbers or as Arrow has them.
 *
 * What a type holds is as `shape/casting.py` has it: an integer type holds no fraction and no number out of range, a float
 * type no finite number that becomes an infinity, and where the loss is EXACT no integer that it may round.
 *
 * Source: parquet-format, "Logical Types" (DECIMAL); Arrow, "Decimal128RealConversion".
 */
#include "engine.h"

#include <float.h>

/* Values that are converted at once, in a core's fastest cache. */
enum { AT_ONCE = 512 };

static const int widths[] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 16, 16};

static bool is_number(int type) { return type >= S8 && type <= F64; }
static bool is_float(int type) { return type == F32 || type == F64; }

bool is_layout(Layout layout) {
    int stored = layout.stored, width = layout.width;
    if (layout.to == AS_STORED && stored == 0) return width == 1;
    if (layout.to == AS_STORED)
        return (width == 1 || width == 2 || width == 4 || width == 8) && width <= stored && stored <= 8;
    if (layout.to > DECIMAL || width != widths[layout.to] || layout.loss > CLIP) return false;
    if (is_number(layout.from))
        return is_number(layout.to) && stored == (widths[layout.from] < 4 ? 4 : widths[layout.from]);
    return (layout.from == DECIMAL || layout.from == LONG_DECIMAL) && layout.scale <= MOST_DIGITS && stored >= 1 &&
           stored <= 16 && (!layout.is_integer || stored == 4 || stored == 8);
}

#define INTEGERS(DO, ...)                                                                                       \
    DO(S8, int8_t, 1, __VA_ARGS__) DO(S16, int16_t, 1, __VA_ARGS__) DO(S32, int32_t, 1, __VA_ARGS__)      \
    DO(S64, int64_t, 1, __VA_ARGS__) DO(U8, uint8_t, 0, __VA_ARGS__) DO(U16, uint16_t, 0, __VA_ARGS__)  \
    DO(U32, uint32_t, 0, __VA_ARGS__) DO(U64, uint64_t, 0, __VA_ARGS__)
#define FLOATS(DO, ...) DO(F32, float, __VA_ARGS__) DO(F64, double, __VA_ARGS__)

/* Whether an integer, as 64 bits with its sign, does not fit; not 0 then. */
static inline uint64_t whole_misfit(uint64_t wide, bool has_sign, bool wants_sign, unsigned bits) {
    if (bits == 64) return has_sign != wants_sign ? wide >> 63 : 0;
    return has_sign && wants_sign ? (wide + (UINT64_C(1) << (bits - 1))) >> bits : wide >> (wants_sign ? bits - 1 : bits);
}

/* Whether its magnitude is above 2^digits, so that a float may round it; not 0 then. */
static inline uint64_t rounding_misfit(uint64_t wide, bool has_sign, unsigned digits) {
    uint64_t most = UINT64_C(1) << digits, from_least = has_sign ? wide + most : wide;
    unsigned bits = has_sign ? digits + 1 : digits; /* the most is allowed, too */
    return (from_least - (from_least >> bits)) >> bits;
}

/* Whether a number that is finite rounds to an infinity of 4 bytes; not 0 then. */
static inline uint64_t infinite_misfit(double value) {
    const double first = 0x1.ffffffp127;
    uint64_t bits, least, most = UINT64_C(0x7FF) << 52;
    memcpy(&bits, &value, sizeof bits);
    memcpy(&least, &first, sizeof least);
    bits &= INT64_MAX;
    return (bits - most) >> 63 & ~((bits - least) >> 63);
}

/* Files hold narrow integers as the first bytes of 4. MISFIT is not 0 if a value does not fit. Compilers make vectors of two
 * loops, where they do not of one. */
#define CASE(NAME, SOURCE, TARGET, MADE, IS_CHECKED, MISFIT)                                        \
    case NAME: {                                                                                    \
        const size_t pitch = sizeof(SOURCE) < 4 ? 4 : sizeof(SOURCE);                               \
        SOURCE value;                                                                               \
        for (size_t i = 0; i < count; i++) {                                                        \
            memcpy(&value, in + i * pitch, sizeof value);                                           \
            TARGET made = MADE;                                                                     \
            memcpy(out + i * sizeof made, &made, sizeof made);                                      \
        }                                                                                           \
        for (size_t i = 0; (IS_CHECKED) && i < count; i++) {                                        \
            memcpy(&value, in + i * pitch, sizeof value);                                           \
            misfits |= MISFIT;                                                                      \
        }                                                                                           \
        break;                                                                                      \
    }

#define WHOLE_TO_WHOLE(NAME, SOURCE, HAS_SIGN, TARGET, WANTS_SIGN)                                  \
    CASE(NAME, SOURCE, TARGET, (TARGET)value, true,                                                 \
         whole_misfit((uint64_t)value, HAS_SIGN, WANTS_SIGN, 8 * sizeof(TARGET)))
#define FITS(TARGET, LEAST, ABOVE) (double)value >= LEAST && (double)value < ABOVE
#define FLOAT_TO_WHOLE(NAME, SOURCE, TARGET, LEAST, ABOVE)                                          \
    CASE(NAME, SOURCE, TARGET, FITS(TARGET, LEAST, ABOVE) ? (TARGET)value : 0, true,                \
         !(FITS(TARGET, LEAST, ABOVE)) || (SOURCE)(TARGET)value != value)
#define WHOLE_TO_FLOAT(NAME, SOURCE, HAS_SIGN, TARGET, DIGITS)                                      \
    CASE(NAME, SOURCE, TARGET, (TARGET)value, loss == EXACT && 8 * sizeof value > DIGITS,           \
         rounding_misfit((uint64_t)value, HAS_SIGN, DIGITS))
#define FLOAT_TO_FLOAT(NAME, SOURCE, TARGET)                                                        \
    CASE(NAME, SOURCE, TARGET, (TARGET)value, loss != CLIP && sizeof(TARGET) < sizeof value, infinite_misfit(value))

#define TO_WHOLE(NAME, TARGET, WANTS_SIGN)                                                          \
    static bool to_##NAME(const uint8_t *in, size_t count, int from, uint8_t *out) {                \
        const double above = (WANTS_SIGN ? 1.0 : 2.0) * (double)(UINT64_C(1) << (8 * sizeof(TARGET) - 1)); \
        const double least = WANTS_SIGN ? -above : 0;                                               \
        uint64_t misfits = 0;                                                                       \
        switch (from) { INTEGERS(WHOLE_TO_WHOLE, TARGET, WANTS_SIGN) FLOATS(FLOAT_TO_WHOLE, TARGET, least, above) } \
        return misfits == 0;                                                                        \
    }
#define TO_FLOAT(NAME, TARGET, DIGITS)                                                              \
    static bool to_##NAME(const uint8_t *in, size_t count, int from, int loss, uint8_t *out) {      \
        uint64_t misfits = 0;                                                                       \
        switch (from) { INTEGERS(WHOLE_TO_FLOAT, TARGET, DIGITS) FLOATS(FLOAT_TO_FLOAT, TARGET) }   \
        return misfits == 0;                                                                        \
    }
TO_WHOLE(S8, int8_t, 1)
TO_WHOLE(S16, int16_t, 1)
TO_WHOLE(S32, int32_t, 1)
TO_WHOLE(S64, int64_t, 1)
TO_WHOLE(U8, uint8_t, 0)
TO_WHOLE(U16, uint16_t, 0)
TO_WHOLE(U32, uint32_t, 0)
TO_WHOLE(U64, uint64_t, 0)
TO_FLOAT(F32, float, FLT_MANT_DIG)
TO_FLOAT(F64, double, DBL_MANT_DIG)

#define CALL_WHOLE(NAME, TARGET, WANTS_SIGN, UNUSED) case NAME: return to_##NAME(in, count, from, out);
#define CALL_FLOAT(NAME, TARGET, UNUSED) case NAME: return to_##NAME(in, count, from, loss, out);

static bool convert_numbers(const uint8_t *in, size_t count, int from, int to, int loss, uint8_t *out) {
    switch (to) { INTEGERS(CALL_WHOLE, 0) FLOATS(CALL_FLOAT, 0) }
    return false;
}

static uint64_t big_endian_at(const uint8_t *bytes) { return __builtin_bswap64(word_at(bytes)); }

/* The lowest 64 bits of unscaled integers, with their sign if they are shorter. */
static void load_low(const uint8_t *in, size_t count, Layout layout, int64_t *low) {
    size_t stored = (size_t)layout.stored, i = 0;
    if (layout.is_integer) {
        convert_numbers(in, count, stored == 4 ? S32 : S64, S64, ROUND, (uint8_t *)low);
    } else if (stored >= 8) {
        for (; i < count; i++) low[i] = (int64_t)big_endian_at(in + (i + 1) * stored - 8);
    } else {
        for (; (i * stored) + 8 <= count * stored; i++)
            low[i] = (int64_t)big_endian_at(in + i * stored) >> (64 - 8 * stored);
        for (; i < count; i++) {
            uint8_t last[8] = {0};
            memcpy(last, in + i * stored, stored);
            low[i] = (int64_t)big_endian_at(last) >> (64 - 8 * stored);
        }
    }
}

/* The highest 64 of 128 bits. */
static void load_high(const uint8_t *in, size_t count, Layout layout, const int64_t *low, int64_t *high) {
    size_t stored = (size_t)layout.stored;
    bool is_long = !layout.is_integer && stored > 8;
    for (size_t i = 0; i < count; i++)
        high[i] = is_long ? (int64_t)big_endian_at(in + i * stored) >> (128 - 8 * stored) : low[i] >> 63;
}

static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12,
                                1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25,
                                1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38};
static const double fractions[] = {
    1e-0,  1e-1,  1e-2,  1e-3,  1e-4,  1e-5,  1e-6,  1e-7,  1e-8,  1e-9,  1e-10, 1e-11, 1e-12,
    1e-13, 1e-14, 1e-15, 1e-16, 1e-17, 1e-18, 1e-19, 1e-20, 1e-21, 1e-22, 1e-23, 1e-24, 1e-25,
    1e-26, 1e-27, 1e-28, 1e-29, 1e-30, 1e-31, 1e-32, 1e-33, 1e-34, 1e-35, 1e-36, 1e-37, 1e-38};

static double scaled(Word16 number, int scale) {
    return ((double)(int64_t)(number >> 64) * 0x1p64 + (double)(uint64_t)number) * fractions[scale];
}

/* Whether a double holds the number exactly: it has at most 53 bits before the zeros at its end. */
static bool is_exact(int64_t low, int64_t high) {
    uint64_t size = low < 0 ? 0 - (uint64_t)low : (uint64_t)low;
    return high == low >> 63 && size >> DBL_MANT_DIG <= (size & (0 - size)) >> 1;
}

/* Divided where that is exact but for the last rounding; else as Arrow converts it, bit for bit. */
static double long_to_float(int64_t low, int64_t high, int scale) {
    if (is_exact(low, high)) return (double)low / powers[scale];
    Word16 number = (Word16)(uint64_t)high << 64 | (uint64_t)low;
    double sign = high < 0 ? -1 : 1;
    if (high < 0) number = 0 - number;
    if (scale == 0) return sign * scaled(number, scale);
    Word16 unit = 1;
    for (int i = 0; i < scale; i++) unit *= 10;
    return sign * (scaled(number / unit, 0) + scaled(number % unit, scale));
}

/* Numbers as doubles, if all are below 2^51: added to the bits of 1.5 * 2^52, which compilers make vectors of. */
static bool to_doubles(const int64_t *low, size_t count, double *floats) {
    uint64_t beyond = 0;
    for (size_t i = 0; i < count; i++) beyond |= ((uint64_t)low[i] + (UINT64_C(1) << 51)) >> 52;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = (uint64_t)low[i] + UINT64_C(0x4338000000000000);
        memcpy(&floats[i], &bits, sizeof bits);
        floats[i] -= 0x1.8p52;
    }
    return beyond == 0;
}

static void short_to_floats(const int64_t *low, size_t count, int scale, double *floats) {
    if (!to_doubles(low, count, floats))
        for (size_t i = 0; i < count; i++) floats[i] = (double)low[i];
    for (size_t i = 0; i < count; i++) floats[i] /= powers[scale];
}

static void long_to_floats(const int64_t *low, const int64_t *high, size_t count, int scale, double *floats) {
    int64_t beyond = 0;
    for (size_t i = 0; i < count; i++) beyond |= high[i] ^ low[i] >> 63;
    if (beyond == 0 && to_doubles(low, count, floats))
        for (size_t i = 0; i < count; i++) floats[i] /= powers[scale];
    else
        for (size_t i = 0; i < count; i++) floats[i] = long_to_float(low[i], high[i], scale);
}

static bool convert_decimals(const uint8_t *in, size_t count, Layout layout, uint8_t *out) {
    int64_t low[AT_ONCE], high[AT_ONCE];
    double floats[AT_ONCE];
    bool is_long = layout.from == LONG_DECIMAL, fits = true;
    load_low(in, count, layout, low);
    if (is_long || layout.to == DECIMAL) load_high(in, count, layout, low, high);
    if (layout.to == DECIMAL) {
        for (size_t i = 0; i < count; i++) memcpy(out + 16 * i, (int64_t[]){low[i], high[i]}, 16);
        return true;
    }
    if (!is_float(layout.to)) {
        for (size_t i = 0; is_long && i < count; i++) fits &= high[i] == low[i] >> 63;
        return convert_numbers((uint8_t *)low, count, S64, layout.to, ROUND, out) && fits;
    }
    if (is_long)
        long_to_floats(low, high, count, layout.scale, floats);
    else
        short_to_floats(low, count, layout.scale, floats);
    return convert_numbers((uint8_t *)floats, count, F64, layout.to, layout.loss, out);
}

bool convert(const uint8_t *in, size_t count, Layout layout, uint8_t *out) {
    bool fits = true;
    for (size_t some; count > 0; count -= some, in += some * (size_t)layout.stored, out += some * (size_t)layout.width) {
        some = count < AT_ONCE ? count : AT_ONCE;
        fits &= is_number(layout.from) ? convert_numbers(in, some, layout.from, layout.to, layout.loss, out)
                                       : convert_decimals(in, some, layout, out);
    }
    return fits;
}
