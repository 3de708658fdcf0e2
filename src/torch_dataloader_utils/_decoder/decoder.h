/* Decodes flat Parquet column chunks of numbers into memory of the caller.
 *
 *     chunk.c    page headers, levels, which rows of a page are wanted
 *     values.c   encodings: PLAIN, dictionary, RLE, BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED
 *     codecs.c   compression, checksums
 *     footer.c   the numbers of a footer: where chunks lie, and how they are compressed
 *     thrift.c   the structs that headers and footers are made of
 *     module.c   the Python functions
 *
 * Every number that a file holds is checked against the bytes there are and the rows that were planned before it is
 * used. What is not understood wholly is refused with a reason, and the caller decodes the chunk in another way. No
 * threads, no state between calls: a fork breaks nothing.
 *
 * Source: parquet-format, "Data Pages", "Encodings", "Compression", "parquet.thrift".
 */
#ifndef DECODER_H
#define DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a chunk is refused; `reasons` in module.c has their names. */
typedef enum {
    DECODED = 0,
    DAMAGED,    /* a length, count or index that does not fit what is there */
    CODEC,      /* compression that is not known, or whose library is not on this machine */
    ENCODING,   /* an encoding or a kind of page that is not known here */
    CHECKSUM,   /* the page's bytes are not those that were written */
    TOO_LARGE,  /* a page of more bytes than the plan allows */
    NO_MEMORY,
} Reason;

/* Bytes from `at` to `end`. */
typedef struct {
    const uint8_t *at, *end;
} Bytes;

static inline size_t left_of(Bytes bytes) { return (size_t)(bytes.end - bytes.at); }

/* Memory that grows and is used again within one call. */
typedef struct {
    uint8_t *bytes;
    size_t size;
} Scratch;

/* At least `size` bytes, and 64 that may be read or written beyond them; NULL if there is no memory. Content is lost. */
uint8_t *scratch_of(Scratch *scratch, size_t size);

/* codecs.c */
typedef enum { UNCOMPRESSED = 0, SNAPPY = 1, ZSTD = 6, LZ4_RAW = 7 } Codec;
Reason decompress(int codec, Bytes in, uint8_t *out, size_t size);
uint32_t crc32_of(Bytes bytes);
bool has_codec(int codec);

/* values.c: values are little-endian numbers of `stored` bytes in the file (0: booleans, a bit each), of which the
 * first `width` bytes are kept: 1, 2, 4 or 8. Booleans become bytes of 0 and 1. */
typedef struct {
    int stored, width;
    bool is_integer; /* INT32 or INT64 */
} Layout;

/* The values of a dictionary page, `count` of `width` bytes. */
typedef struct {
    const uint8_t *values;
    size_t count;
} Dictionary;

typedef enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    DELTA_BINARY_PACKED = 5,
    RLE_DICTIONARY = 8,
    BYTE_STREAM_SPLIT = 9
} Encoding;

/* Writes exactly `count` values to `out`. */
Reason decode_values(int encoding, Bytes in, size_t count, Layout layout, const Dictionary *dictionary, uint8_t *out);

/* Reads `count` levels of one bit; `present` gets a byte of 0 or 1 each, unless all are 1: *all_present then. */
Reason decode_levels(Bytes in, size_t count, uint8_t *present, bool *all_present);

bool read_varint(Bytes *in, uint64_t *value);

/* chunk.c */
typedef struct {
    Bytes pages;
    int codec;
    Layout layout;
    bool is_optional;
    int64_t num_values;       /* of the whole chunk, by the footer */
    int64_t first, count;     /* the rows that are wanted */
    size_t most_page_bytes;   /* no page may be larger, stored or decompressed */
    bool checks_pages;        /* whether checksums are checked, where pages have them */
    uint8_t *values;          /* count * width bytes, or a bitmap of booleans */
    uint8_t *validity;        /* a bitmap of `count` bits, written only if there are nulls */
    int64_t nulls;            /* result: how many of the wanted rows are null */
    int64_t pages_decoded;    /* result */
} Chunk;

typedef struct {
    Scratch page, dictionary_page, dictionary, values, present, expanded;
} Work;

Reason decode_chunk(Chunk *chunk, Work *work);

/* The rows of the data pages that are there, by their headers. */
int64_t count_rows(Bytes pages);
void free_work(Work *work);

/* footer.c: for each row group and leaf column CHUNK_NUMBERS numbers, in the order of the enum; -1 for none. False if the
 * footer has other row groups or columns, or says anything of a chunk that is not understood. */
enum { CHUNK_CODEC, CHUNK_VALUES, CHUNK_UNCOMPRESSED, CHUNK_COMPRESSED, CHUNK_DATA, CHUNK_DICTIONARY, CHUNK_NUMBERS };
bool read_footer(Bytes footer, uint64_t num_groups, uint64_t num_leaves, int64_t *numbers);

#endif
