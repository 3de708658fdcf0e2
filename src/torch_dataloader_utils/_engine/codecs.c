/* Compression and checksums of pages.
 *
 * Snappy is decompressed here. Zstandard and LZ4 are the system's libraries, looked up when a chunk needs them: where
 * they are missing, such chunks are refused.
 *
 * Source: snappy, "format_description.txt"; parquet-format, "Compression" (LZ4_RAW is one LZ4 block).
 */
#include "engine.h"

#include <dlfcn.h>
#include <limits.h>
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

typedef size_t (*ZstdDecompress)(void *, size_t, const void *, size_t);
typedef unsigned (*ZstdIsError)(size_t);
typedef int (*Lz4Decompress)(const char *, char *, int, int);

/* A function of a system library, which stays loaded; NULL if it is not there. dlopen finds a loaded one at once. */
static void *function_of(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    return handle == NULL ? NULL : dlsym(handle, name);
}

#ifdef __APPLE__
#define ZSTD_LIBRARY "libzstd.1.dylib"
#define LZ4_LIBRARY "liblz4.1.dylib"
#else
#define ZSTD_LIBRARY "libzstd.so.1"
#define LZ4_LIBRARY "liblz4.so.1"
#endif

static Reason decompress_zstd(Bytes in, uint8_t *out, size_t size) {
    ZstdDecompress decompressed = (ZstdDecompress)function_of(ZSTD_LIBRARY, "ZSTD_decompress");
    ZstdIsError is_error = (ZstdIsError)function_of(ZSTD_LIBRARY, "ZSTD_isError");
    if (decompressed == NULL || is_error == NULL) return CODEC;
    size_t written = decompressed(out, size, in.at, left_of(in));
    return !is_error(written) && written == size ? DECODED : DAMAGED;
}

static Reason decompress_lz4(Bytes in, uint8_t *out, size_t size) {
    Lz4Decompress decompressed = (Lz4Decompress)function_of(LZ4_LIBRARY, "LZ4_decompress_safe");
    if (decompressed == NULL) return CODEC;
    if (left_of(in) > INT_MAX || size > INT_MAX) return TOO_LARGE;
    int written = decompressed((const char *)in.at, (char *)out, (int)left_of(in), (int)size);
    return written >= 0 && (size_t)written == size ? DECODED : DAMAGED;
}

bool has_codec(int codec) {
    switch (codec) {
        case UNCOMPRESSED:
        case SNAPPY: return true;
        case ZSTD: return function_of(ZSTD_LIBRARY, "ZSTD_decompress") != NULL;
        case LZ4_RAW: return function_of(LZ4_LIBRARY, "LZ4_decompress_safe") != NULL;
        default: return false;
    }
}

Reason decompress(int codec, Bytes in, uint8_t *out, size_t size) {
    switch (codec) {
        case UNCOMPRESSED:
            if (left_of(in) != size) return DAMAGED;
            memcpy(out, in.at, size);
            return DECODED;
        case SNAPPY: return decompress_snappy(in, out, size);
        case ZSTD: return decompress_zstd(in, out, size);
        case LZ4_RAW: return decompress_lz4(in, out, size);
        default: return CODEC;
    }
}

/* CRC-32 as in gzip, eight bytes at a time; the tables are computed for each call (2 us), so that nothing is global. */
uint32_t crc32_of(Bytes bytes) {
    uint32_t table[8][256];
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
        table[0][i] = value;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    uint32_t crc = 0xFFFFFFFFu;
    for (; left_of(bytes) >= 8; bytes.at += 8) {
        uint32_t low = crc ^ little_endian(bytes.at, 4), high = little_endian(bytes.at + 4, 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; bytes.at < bytes.end; bytes.at++) crc = crc >> 8 ^ table[0][(crc ^ *bytes.at) & 255];
    return ~crc;
}
