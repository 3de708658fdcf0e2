/* Compression and checksums of pages.
 *
 * Snappy is decompressed here. Zstandard, LZ4 and zlib are the system's libraries, looked up when a chunk needs them:
 * where they are missing, such chunks are refused.
 *
 * Source: snappy, "format_description.txt"; parquet-format, "Compression" (LZ4_RAW is one LZ4 block); zlib.h.
 */
#include "engine.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static uint32_t little_endian(const uint8_t *at, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint32_t)at[i] << (8 * i);
    return value;
}

/* `length` bytes from `offset` before `out`, which may overlap what is written; there is room for 16 bytes more. */
static void repeat_wide(uint8_t *out, size_t offset, size_t length) {
    const uint8_t *from = out - offset;
    if (offset >= 16) {
        for (size_t done = 0; done < length; done += 16) memcpy(out + done, from + done, 16);
    } else if (offset >= 8) {
        for (size_t done = 0; done < length; done += 8) memcpy(out + done, from + done, 8);
    } else {
        for (size_t done = 0; done < length; done++) out[done] = from[done];
    }
}

static Reason decompress_snappy(Bytes in, uint8_t *out, size_t size) {
    uint64_t said;
    if (!read_varint(&in, &said) || said != size) return DAMAGED;
    uint8_t *at = out, *end = out + size;
    while (in.at < in.end) {
        uint8_t tag = *in.at++;
        size_t length = (size_t)(tag >> 2) + 1;
        if ((tag & 3) == 0) {
            if (length <= 16 && left_of(in) >= 16 && end - at >= 16) {
                memcpy(at, in.at, 16);
                at += length;
                in.at += length;
                continue;
            }
            if (length > 60) {
                size_t bytes = length - 60;
                if (left_of(in) < bytes) return DAMAGED;
                length = (size_t)little_endian(in.at, (int)bytes) + 1;
                in.at += bytes;
            }
            if (left_of(in) < length || (size_t)(end - at) < length) return DAMAGED;
            memcpy(at, in.at, length);
            at += length;
            in.at += length;
            continue;
        }
        size_t offset;
        int bytes = (tag & 3) == 3 ? 4 : tag & 3;
        if (left_of(in) < (size_t)bytes) return DAMAGED;
        if (bytes == 1) {
            length = ((tag >> 2) & 7) + 4;
            offset = (size_t)(tag >> 5) << 8 | in.at[0];
        } else {
            offset = little_endian(in.at, bytes);
        }
        in.at += bytes;
        if (offset == 0 || offset > (size_t)(at - out) || length > (size_t)(end - at)) return DAMAGED;
        if ((size_t)(end - at) >= length + 16) {
            repeat_wide(at, offset, length);
        } else {
            for (size_t done = 0; done < length; done++) at[done] = at[done - offset];
        }
        at += length;
    }
    return at == end ? DECODED : DAMAGED;
}

typedef void *(*ZstdMake)(void);
typedef size_t (*ZstdFree)(void *);
typedef size_t (*ZstdDecompress)(void *, void *, size_t, const void *, size_t);
typedef unsigned (*ZstdIsError)(size_t);
typedef int (*Lz4Decompress)(const char *, char *, int, int);

/* z_stream of zlib.h, which is the same in all versions 1. */
typedef struct {
    const uint8_t *in;
    unsigned in_left;
    unsigned long in_total;
    uint8_t *out;
    unsigned out_left;
    unsigned long out_total;
    const char *message;
    void *state, *allocate, *release, *opaque;
    int data_type;
    unsigned long adler, reserved;
} ZlibStream;
typedef int (*ZlibBegin)(ZlibStream *, int, const char *, int);
typedef int (*ZlibInflate)(ZlibStream *, int);
typedef int (*ZlibReset)(ZlibStream *);
enum { ZLIB_FINISH = 4, ZLIB_END = 1, ZLIB_OR_GZIP = 15 + 32 };

/* A function of a system library, which stays loaded; NULL if it is not there. dlopen finds a loaded one at once. */
static void *function_of(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    return handle == NULL ? NULL : dlsym(handle, name);
}

#ifdef __APPLE__
#define ZSTD_LIBRARY "libzstd.1.dylib"
#define LZ4_LIBRARY "liblz4.1.dylib"
#define ZLIB_LIBRARY "libz.1.dylib"
#else
#define ZSTD_LIBRARY "libzstd.so.1"
#define LZ4_LIBRARY "liblz4.so.1"
#define ZLIB_LIBRARY "libz.so.1"
#endif

/* The function of this name, looked up unless that was done before. */
static void *known(void **function, const char *library, const char *name) {
    if (*function == NULL) *function = function_of(library, name);
    return *function;
}

static Reason decompress_zstd(Bytes in, uint8_t *out, size_t size, Codecs *codecs) {
    ZstdDecompress decompressed = (ZstdDecompress)known(&codecs->zstd_decompress, ZSTD_LIBRARY, "ZSTD_decompressDCtx");
    ZstdIsError is_error = (ZstdIsError)known(&codecs->zstd_is_error, ZSTD_LIBRARY, "ZSTD_isError");
    if (decompressed == NULL || is_error == NULL) return CODEC;
    if (codecs->zstd == NULL) {
        ZstdMake make = (ZstdMake)function_of(ZSTD_LIBRARY, "ZSTD_createDCtx");
        codecs->zstd = make == NULL ? NULL : make();
        if (codecs->zstd == NULL) return NO_MEMORY;
    }
    size_t written = decompressed(codecs->zstd, out, size, in.at, left_of(in));
    return !is_error(written) && written == size ? DECODED : DAMAGED;
}

static Reason decompress_lz4(Bytes in, uint8_t *out, size_t size, Codecs *codecs) {
    Lz4Decompress decompressed = (Lz4Decompress)known(&codecs->lz4_decompress, LZ4_LIBRARY, "LZ4_decompress_safe");
    if (decompressed == NULL) return CODEC;
    if (left_of(in) > INT_MAX || size > INT_MAX) return TOO_LARGE;
    int written = decompressed((const char *)in.at, (char *)out, (int)left_of(in), (int)size);
    return written >= 0 && (size_t)written == size ? DECODED : DAMAGED;
}

static ZlibStream *make_zlib(void) {
    ZlibBegin begin = (ZlibBegin)function_of(ZLIB_LIBRARY, "inflateInit2_");
    ZlibStream *stream = begin == NULL ? NULL : calloc(1, sizeof *stream);
    if (stream != NULL && begin(stream, ZLIB_OR_GZIP, "1", (int)sizeof *stream) != 0) {
        free(stream);
        stream = NULL;
    }
    return stream;
}

/* One stream of gzip or zlib that is as long as the page. */
static Reason decompress_gzip(Bytes in, uint8_t *out, size_t size, Codecs *codecs) {
    ZlibInflate inflate = (ZlibInflate)known(&codecs->zlib_inflate, ZLIB_LIBRARY, "inflate");
    ZlibReset reset = (ZlibReset)known(&codecs->zlib_reset, ZLIB_LIBRARY, "inflateReset");
    if (inflate == NULL || reset == NULL) return CODEC;
    if (left_of(in) > UINT_MAX || size > UINT_MAX) return TOO_LARGE;
    if (codecs->zlib == NULL && (codecs->zlib = make_zlib()) == NULL) return NO_MEMORY;
    ZlibStream *stream = codecs->zlib;
    if (reset(stream) != 0) return DAMAGED;
    stream->in = in.at;
    stream->in_left = (unsigned)left_of(in);
    stream->out = out;
    stream->out_left = (unsigned)size;
    return inflate(stream, ZLIB_FINISH) == ZLIB_END && stream->out_left == 0 && stream->in_left == 0 ? DECODED : DAMAGED;
}

void free_codecs(Codecs *codecs) {
    ZstdFree free_context = codecs->zstd == NULL ? NULL : (ZstdFree)function_of(ZSTD_LIBRARY, "ZSTD_freeDCtx");
    if (free_context != NULL) free_context(codecs->zstd);
    ZlibReset end = codecs->zlib == NULL ? NULL : (ZlibReset)function_of(ZLIB_LIBRARY, "inflateEnd");
    if (end != NULL) end(codecs->zlib);
    free(codecs->zlib);
}

bool has_codec(int codec) {
    switch (codec) {
        case UNCOMPRESSED:
        case SNAPPY: return true;
        case GZIP: return function_of(ZLIB_LIBRARY, "inflateInit2_") != NULL;
        case ZSTD: return function_of(ZSTD_LIBRARY, "ZSTD_decompress") != NULL;
        case LZ4_RAW: return function_of(LZ4_LIBRARY, "LZ4_decompress_safe") != NULL;
        default: return false;
    }
}

Reason decompress(int codec, Bytes in, uint8_t *out, size_t size, Codecs *codecs) {
    switch (codec) {
        case UNCOMPRESSED:
            if (left_of(in) != size) return DAMAGED;
            memcpy(out, in.at, size);
            return DECODED;
        case SNAPPY: return decompress_snappy(in, out, size);
        case GZIP: return decompress_gzip(in, out, size, codecs);
        case ZSTD: return decompress_zstd(in, out, size, codecs);
        case LZ4_RAW: return decompress_lz4(in, out, size, codecs);
        default: return CODEC;
    }
}

enum { LEAST_FOLDED = 64 };

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLD(into, constants, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(into, constants, 0x00), _mm_clmulepi64_si128(into, constants, 0x11)), next)

static __attribute__((target("pclmul,sse4.1"))) __m128i load(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

/* The CRC of at least 64 bytes, a multiple of 16. Source: Gopal et al., "Fast CRC computation for generic polynomials using
 * the PCLMULQDQ instruction" (Intel), section "bit-reflected"; its constants for CRC-32. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t folded_crc(const uint8_t *at, size_t size, uint32_t crc) {
    __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i last = _mm_set_epi64x(0, 0x0163cd6124), polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    __m128i low = _mm_setr_epi32(-1, 0, -1, 0), parts[4];
    for (int i = 0; i < 4; i++) parts[i] = load(at + 16 * i);
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128((int)crc));
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64)
        for (int i = 0; i < 4; i++) parts[i] = FOLD(parts[i], by_64, load(at + 16 * i));
    __m128i sum = parts[0];
    for (int i = 1; i < 4; i++) sum = FOLD(sum, by_16, parts[i]);
    for (; size >= 16; at += 16, size -= 16) sum = FOLD(sum, by_16, load(at));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_16, 0x10));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 4), _mm_clmulepi64_si128(_mm_and_si128(sum, low), last, 0x00));
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low), polynomial, 0x10), low);
    sum = _mm_xor_si128(sum, _mm_clmulepi64_si128(quotient, polynomial, 0x00));
    return (uint32_t)_mm_extract_epi32(sum, 1);
}

static bool can_fold(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
#else
static bool can_fold(void) { return false; }
static uint32_t folded_crc(const uint8_t *at, size_t size, uint32_t crc) { return (void)at, (void)size, crc; }
#endif

static uint32_t next_crc(uint32_t crc) {
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    return crc;
}

/* The CRC of a multiple of 8 bytes; the tables are computed for each call (2 us), so that nothing is global. */
static uint32_t tabled_crc(const uint8_t *at, size_t size, uint32_t crc) {
    uint32_t table[8][256];
    for (uint32_t i = 0; i < 256; i++) table[0][i] = next_crc(i);
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    for (; size > 0; at += 8, size -= 8) {
        uint32_t low = crc ^ little_endian(at, 4), high = little_endian(at + 4, 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    return crc;
}

/* CRC-32 as in gzip, of the bytes after those of which `before` is the CRC (0 for none): most bytes by the processor's
 * instruction, or by tables, the others one by one. */
uint32_t crc32_of(Bytes bytes, uint32_t before) {
    uint32_t crc = ~before;
    if (left_of(bytes) >= LEAST_FOLDED) {
        size_t size = left_of(bytes) / 16 * 16;
        crc = can_fold() ? folded_crc(bytes.at, size, crc) : tabled_crc(bytes.at, size, crc);
        bytes.at += size;
    }
    for (; bytes.at < bytes.end; bytes.at++) crc = crc >> 8 ^ next_crc((crc ^ *bytes.at) & 255);
    return ~crc;
}
