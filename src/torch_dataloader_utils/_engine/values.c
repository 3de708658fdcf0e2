/* Encodings of values and of levels.
 *
 * Source: parquet-format, "Encodings".
 */
#include "engine.h"

#include <string.h>

bool read_varint(Bytes *in, uint64_t *value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->at == in->end) return false;
        uint8_t byte = *in->at++;
        if (shift == 63 && byte > 1) return false;
        result |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = result;
            return true;
        }
    }
    return false;
}

/* 32 numbers of W bits, packed from the lowest bit; reads up to 8 bytes beyond them. */
#define UNPACK(W)                                                                      \
    static void unpack_##W(const uint8_t *in, uint32_t *out) {                         \
        for (int i = 0; i < 32; i++) {                                                 \
            uint64_t word;                                                             \
            memcpy(&word, in + i * W / 8, 8);                                          \
            out[i] = (uint32_t)(word >> i * W % 8) & (uint32_t)((UINT64_C(1) << W) - 1); \
        }                                                                              \
    }
#define EACH_WIDTH(DO)                                                                                          \
    DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) DO(16)      \
    DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23) DO(24) DO(25) DO(26) DO(27) DO(28) DO(29) DO(30) DO(31) DO(32)
EACH_WIDTH(UNPACK)

typedef void (*Unpack)(const uint8_t *, uint32_t *);
#define NAME(W) unpack_##W,
static const Unpack unpackers[] = {NULL, EACH_WIDTH(NAME)};

bool next_run(Runs *runs) {
    uint64_t header;
    if (!read_varint(&runs->in, &header) || header > UINT32_MAX) return false;
    runs->is_packed = header & 1;
    if (runs->is_packed) {
        uint64_t bytes = (header >> 1) * (uint64_t)runs->bits;
        if (bytes > left_of(runs->in)) return false;
        runs->count = (header >> 1) * 8;
        runs->packed = runs->in.at;
        runs->in.at += bytes;
        return true;
    }
    size_t bytes = (size_t)(runs->bits + 7) / 8;
    if (bytes > left_of(runs->in)) return false;
    runs->count = header >> 1;
    runs->repeated = 0;
    for (size_t i = 0; i < bytes; i++) runs->repeated |= (uint32_t)runs->in.at[i] << (8 * i);
    runs->in.at += bytes;
    return true;
}

/* Numbers [first, first + count) of a packed run, at most 32, first a multiple of 8; `end`: of all bytes. */
static void unpack_some(const Runs *runs, uint64_t first, size_t count, const uint8_t *end, uint32_t *out) {
    if (runs->bits == 0) {
        memset(out, 0, 32 * sizeof *out);
        return;
    }
    const uint8_t *in = runs->packed + first / 8 * (uint64_t)runs->bits;
    size_t bytes = 4 * (size_t)runs->bits;
    if ((size_t)(end - in) >= bytes + 8) {
        unpackers[runs->bits](in, out);
        return;
    }
    uint8_t copy[4 * 32 + 8] = {0};
    size_t there = (count * (size_t)runs->bits + 7) / 8;
    memcpy(copy, in, there);
    unpackers[runs->bits](copy, out);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* The first of these numbers, 8 at a time, as far as 32 bytes beyond them are there; returns how many.
 *
 * Four numbers of at most 25 bits lie in 16 bytes. Of these, a shuffle gives each number the 4 bytes that it begins in,
 * and a shift puts it in its place. */
__attribute__((target("avx2"))) static size_t unpack_avx2(const Runs *runs, uint64_t first, size_t count,
                                                          const uint8_t *end, uint32_t *out) {
    int bits = runs->bits;
    if (bits < 1 || bits > 25) return 0;
    uint8_t bytes[32];
    uint32_t shifts[8];
    for (int i = 0; i < 8; i++) {
        int bit = i % 4 * bits + i / 4 * (4 * bits % 8);
        for (int k = 0; k < 4; k++) bytes[4 * i + k] = (uint8_t)(bit / 8 + k);
        shifts[i] = (uint32_t)(bit % 8);
    }
    __m256i take = _mm256_loadu_si256((const __m256i *)bytes), shift = _mm256_loadu_si256((const __m256i *)shifts);
    __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    const uint8_t *in = runs->packed + first / 8 * (uint64_t)bits;
    size_t done = 0;
    for (; done + 8 <= count && end - in >= bits + 32; done += 8, in += bits) {
        __m128i low = _mm_loadu_si128((const __m128i *)in), high = _mm_loadu_si128((const __m128i *)(in + 4 * bits / 8));
        __m256i halves = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        __m256i numbers = _mm256_srlv_epi32(_mm256_shuffle_epi8(halves, take), shift);
        _mm256_storeu_si256((__m256i *)(out + done), _mm256_and_si256(numbers, mask));
    }
    return done;
}

__attribute__((target("avx2"))) static uint32_t largest_avx2(const uint32_t *numbers, size_t count) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = numbers[i] > largest ? numbers[i] : largest;
    return largest;
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
static bool has_avx2(void) { return false; }
static size_t unpack_avx2(const Runs *runs, uint64_t first, size_t count, const uint8_t *end, uint32_t *out) {
    (void)runs, (void)first, (void)count, (void)end, (void)out;
    return 0;
}
static uint32_t largest_avx2(const uint32_t *numbers, size_t count) { (void)numbers, (void)count; return 0; }
#endif

/* Numbers [first, first + count) of a packed run, first a multiple of 32; `out` has room for 31 more. Returns the
 * largest. */
static uint32_t unpack(const Runs *runs, uint64_t first, size_t count, const uint8_t *end, uint32_t *out) {
    bool is_wide = has_avx2();
    size_t done = is_wide ? unpack_avx2(runs, first, count, end, out) : 0;
    for (; done < count; done += 32)
        unpack_some(runs, first + done, count - done < 32 ? count - done : 32, end, out + done);
    if (is_wide) return largest_avx2(out, count);
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = out[i] > largest ? out[i] : largest;
    return largest;
}

#define FILL(TYPE)                                              \
    {                                                           \
        TYPE value, *to = (TYPE *)out;                          \
        memcpy(&value, from, sizeof value);                     \
        for (size_t i = 0; i < count; i++) to[i] = value;       \
        break;                                                  \
    }

static void fill(const uint8_t *from, int width, size_t count, uint8_t *out) {
    switch (width) {
        case 1: FILL(uint8_t)
        case 2: FILL(uint16_t)
        case 4: FILL(uint32_t)
        case 8: FILL(uint64_t)
        default: FILL(Word16)
    }
}

/* Indices that are unpacked before their values are looked up: they stay in a core's fastest cache, and more of
 * them pay for preparing to unpack (a row group of 51 columns: 9.2 ms; with 256, 9.5 ms). */
enum { AT_ONCE = 1024 };

static Reason decode_dictionary(Bytes in, size_t count, int width, const Dictionary *dictionary, uint8_t *out) {
    if (count == 0) return DECODED;
    if (dictionary->values == NULL || in.at == in.end) return DAMAGED;
    Runs runs = {.bits = *in.at++};
    if (runs.bits > 32) return DAMAGED;
    runs.in = in;
    while (count > 0) {
        if (!next_run(&runs)) return DAMAGED;
        size_t wanted = runs.count < count ? (size_t)runs.count : count;
        if (!runs.is_packed) {
            if (wanted == 0) continue;
            if (runs.repeated >= dictionary->count) return DAMAGED;
            fill(dictionary->values + (size_t)runs.repeated * (size_t)width, width, wanted, out);
            out += wanted * (size_t)width;
        } else {
            for (size_t first = 0; first < wanted; first += AT_ONCE) {
                uint32_t indices[AT_ONCE + 32];
                size_t some = wanted - first < AT_ONCE ? wanted - first : AT_ONCE;
                if (unpack(&runs, first, some, runs.in.end, indices) >= dictionary->count) return DAMAGED;
                (dictionary->is_streamed ? stream_rows : take_rows)(dictionary->values, (size_t)width, indices, some, out);
                out += some * (size_t)width;
            }
        }
        count -= wanted;
    }
    return DECODED;
}

/* `count` bits as bytes of 0 or 1. */
static void unpack_bits(const uint8_t *packed, size_t count, uint8_t *out) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word = unpack_byte(packed[i / 8]);
        memcpy(out + i, &word, sizeof word);
    }
    for (; i < count; i++) out[i] = packed[i / 8] >> i % 8 & 1;
}

/* Numbers of one bit (most: 1) or two, none of them larger than `most`, as bytes. */
static Reason decode_bits(Bytes in, size_t count, int most, uint8_t *out) {
    Runs runs = {.in = in, .bits = most > 1 ? 2 : 1};
    while (count > 0) {
        if (!next_run(&runs)) return DAMAGED;
        size_t wanted = runs.count < count ? (size_t)runs.count : count;
        if (!runs.is_packed) {
            if (runs.repeated > (uint32_t)most) return DAMAGED;
            memset(out, (int)runs.repeated, wanted);
        } else if (runs.bits == 1) {
            unpack_bits(runs.packed, wanted, out);
        } else {
            uint8_t largest = 0;
            for (size_t i = 0; i < wanted; i++) out[i] = runs.packed[i / 4] >> i % 4 * 2 & 3;
            for (size_t i = 0; i < wanted; i++) largest = out[i] > largest ? out[i] : largest;
            if (largest > most) return DAMAGED;
        }
        out += wanted;
        count -= wanted;
    }
    return DECODED;
}

Reason decode_levels(Bytes in, size_t count, int most, uint8_t *levels, bool *are_most) {
    Runs runs = {.in = in, .bits = most > 1 ? 2 : 1};
    *are_most = count == 0 || (next_run(&runs) && !runs.is_packed && runs.repeated == (uint32_t)most && runs.count >= count);
    if (*are_most) return DECODED;
    Reason reason = decode_bits(in, count, most, levels);
    if (reason != DECODED) return reason;
    uint8_t least = (uint8_t)most;
    for (size_t i = 0; i < count; i++) least = levels[i] < least ? levels[i] : least;
    *are_most = least == most;
    return DECODED;
}

/* The first WIDTH bytes of every `stored` bytes. */
#define NARROW(WIDTH)                                                                          \
    {                                                                                          \
        for (size_t i = 0; i < count; i++) memcpy(out + i * WIDTH, in + i * stored, WIDTH);    \
        break;                                                                                 \
    }

static void narrow(const uint8_t *in, size_t stored, int width, size_t count, uint8_t *out) {
    switch (width) {
        case 1: NARROW(1)
        case 2: NARROW(2)
        case 4: NARROW(4)
        default: NARROW(8)
    }
}

static Reason decode_plain(Bytes in, size_t count, Layout layout, uint8_t *out) {
    if (layout.stored == 0) {
        if (left_of(in) < (count + 7) / 8) return DAMAGED;
        unpack_bits(in.at, count, out);
        return DECODED;
    }
    if (left_of(in) / (size_t)layout.stored < count) return DAMAGED;
    if (layout.stored == layout.width) {
        memcpy(out, in.at, count * (size_t)layout.width);
        return DECODED;
    }
    narrow(in.at, (size_t)layout.stored, layout.width, count, out);
    return DECODED;
}

#if defined(__SSE2__)
/* 16 numbers of 4 bytes: `out` gets 4 at a time, `in` has a byte of each, the next byte `pitch` bytes later. */
static inline void join_4_streams(const uint8_t *in, size_t pitch, __m128i *out) {
    __m128i bytes[4];
    for (size_t k = 0; k < 4; k++) bytes[k] = _mm_loadu_si128((const __m128i *)(in + k * pitch));
    __m128i low01 = _mm_unpacklo_epi8(bytes[0], bytes[1]), high01 = _mm_unpackhi_epi8(bytes[0], bytes[1]);
    __m128i low23 = _mm_unpacklo_epi8(bytes[2], bytes[3]), high23 = _mm_unpackhi_epi8(bytes[2], bytes[3]);
    out[0] = _mm_unpacklo_epi16(low01, low23);
    out[1] = _mm_unpackhi_epi16(low01, low23);
    out[2] = _mm_unpacklo_epi16(high01, high23);
    out[3] = _mm_unpackhi_epi16(high01, high23);
}

/* The first numbers of 4 or 8 bytes, 16 at a time; returns how many. */
static size_t join_streams(const uint8_t *in, size_t count, size_t width, uint8_t *out) {
    size_t i = 0;
    for (; width == 4 && i + 16 <= count; i += 16) {
        __m128i joined[4];
        join_4_streams(in + i, count, joined);
        for (size_t k = 0; k < 4; k++) _mm_storeu_si128((__m128i *)(out + 4 * i) + k, joined[k]);
    }
    for (; width == 8 && i + 16 <= count; i += 16) {
        __m128i low[4], high[4];
        join_4_streams(in + i, count, low);
        join_4_streams(in + 4 * count + i, count, high);
        for (size_t k = 0; k < 4; k++) {
            __m128i *to = (__m128i *)(out + 8 * i) + 2 * k;
            _mm_storeu_si128(to, _mm_unpacklo_epi32(low[k], high[k]));
            _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(low[k], high[k]));
        }
    }
    return i;
}
#else
static size_t join_streams(const uint8_t *in, size_t count, size_t width, uint8_t *out) {
    (void)in, (void)count, (void)width, (void)out;
    return 0;
}
#endif

static Reason decode_byte_streams(Bytes in, size_t count, Layout layout, uint8_t *out) {
    if (layout.stored == 0) return ENCODING;
    size_t stored = (size_t)layout.stored, width = (size_t)layout.width;
    if (left_of(in) % stored != 0 || left_of(in) / stored != count) return DAMAGED;
    size_t done = join_streams(in.at, count, width, out);
    for (size_t k = 0; k < width; k++)
        for (size_t i = done; i < count; i++) out[i * width + k] = in.at[k * count + i];
    return DECODED;
}

static void put(uint64_t value, int width, uint8_t *out) {
    switch (width) {
        case 1: *out = (uint8_t)value; break;
        case 2: { uint16_t narrow = (uint16_t)value; memcpy(out, &narrow, 2); break; }
        case 4: { uint32_t narrow = (uint32_t)value; memcpy(out, &narrow, 4); break; }
        default: memcpy(out, &value, 8);
    }
}

static uint64_t unzigzag(uint64_t value) { return value >> 1 ^ (~(value & 1) + 1); }

/* `bits` bits from bit `at` of `in`; bits up to 64. The caller has checked that they are there. */
static uint64_t bits_at(const uint8_t *in, uint64_t at, int bits) {
    uint64_t value = 0;
    for (int have = 0; have < bits;) {
        uint64_t bit = at + (uint64_t)have;
        int room = 8 - (int)(bit % 8), some = bits - have < room ? bits - have : room;
        value |= ((uint64_t)(in[bit / 8] >> bit % 8) & ((UINT64_C(1) << some) - 1)) << have;
        have += some;
    }
    return value;
}

static Reason decode_deltas(Bytes in, size_t count, Layout layout, uint8_t *out) {
    if (!layout.is_integer) return ENCODING;
    uint64_t block, minis, total, value;
    if (!read_varint(&in, &block) || !read_varint(&in, &minis) || !read_varint(&in, &total)) return DAMAGED;
    if (!read_varint(&in, &value) || total != count) return DAMAGED;
    if (minis == 0 || block == 0 || block > UINT32_MAX || minis > block || block % minis != 0) return DAMAGED;
    uint64_t each = block / minis;
    if (each % 32 != 0) return DAMAGED;
    if (count == 0) return DECODED;
    size_t width = (size_t)layout.width;
    value = unzigzag(value);
    put(value, layout.width, out);
    out += width;
    for (size_t left = count - 1; left > 0;) {
        uint64_t least;
        if (!read_varint(&in, &least) || left_of(in) < minis) return DAMAGED;
        least = unzigzag(least);
        const uint8_t *widths = in.at;
        in.at += minis;
        for (uint64_t mini = 0; mini < minis && left > 0; mini++) {
            int bits = widths[mini];
            /* DuckDB and arrow-go write up to 34 bits for INT32: sums of wide deltas are the same, modulo 2^32. */
            if (bits > 64) return DAMAGED;
            uint64_t bytes = each / 8 * (uint64_t)bits;
            size_t wanted = left < each ? left : (size_t)each;
            if (bytes > left_of(in)) return DAMAGED;
            for (size_t i = 0; i < wanted; i++) {
                uint64_t at = i * (uint64_t)bits, delta;
                if (bits <= 56 && left_of(in) >= at / 8 + 8) {
                    memcpy(&delta, in.at + at / 8, 8);
                    delta = delta >> at % 8 & ((UINT64_C(1) << bits) - 1);
                } else {
                    delta = bits_at(in.at, at, bits);
                }
                value += least + delta;
                put(value, layout.width, out);
                out += width;
            }
            in.at += bytes;
            left -= wanted;
        }
    }
    return DECODED;
}

static Reason decode_rle_booleans(Bytes in, size_t count, Layout layout, uint8_t *out) {
    if (layout.stored != 0) return ENCODING;
    uint32_t length;
    if (left_of(in) < 4) return DAMAGED;
    memcpy(&length, in.at, 4);
    in.at += 4;
    if (length > left_of(in)) return DAMAGED;
    in.end = in.at + length;
    return decode_bits(in, count, 1, out);
}

static Reason decode_stored(int encoding, Bytes in, size_t count, Layout layout, const Dictionary *dictionary, uint8_t *out) {
    switch (encoding) {
        case PLAIN: return decode_plain(in, count, layout, out);
        case PLAIN_DICTIONARY:
        case RLE_DICTIONARY: return decode_dictionary(in, count, layout.width, dictionary, out);
        case RLE: return decode_rle_booleans(in, count, layout, out);
        case DELTA_BINARY_PACKED: return decode_deltas(in, count, layout, out);
        case BYTE_STREAM_SPLIT: return decode_byte_streams(in, count, layout, out);
        default: return ENCODING;
    }
}

Reason decode_values(int encoding, Bytes in, size_t count, Layout layout, const Dictionary *dictionary, Scratch *stored,
                     uint8_t *out) {
    bool is_dictionary = encoding == PLAIN_DICTIONARY || encoding == RLE_DICTIONARY; /* of converted values */
    if (layout.to == AS_STORED || is_dictionary) return decode_stored(encoding, in, count, layout, dictionary, out);
    size_t bytes = (size_t)layout.stored;
    if (encoding != PLAIN) {
        uint8_t *values = scratch_of(stored, count * bytes);
        if (values == NULL) return NO_MEMORY;
        Layout whole = {.stored = layout.stored, .width = layout.stored, .is_integer = layout.is_integer};
        Reason reason = decode_stored(encoding, in, count, whole, NULL, values);
        if (reason != DECODED) return reason;
        in = (Bytes){values, values + count * bytes};
    }
    if (left_of(in) / bytes < count) return DAMAGED;
    return convert(in.at, count, layout, out) ? DECODED : MISFIT;
}
