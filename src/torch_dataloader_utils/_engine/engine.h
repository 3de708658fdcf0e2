/* Decodes Parquet column chunks of numbers, and of lists of numbers, into memory of the caller; finds the keys of JSON.
 *
 *     chunk.c    page headers, which rows of a page are wanted
 *     lists.c    levels of lists
 *     values.c   encodings: PLAIN, dictionary, RLE, BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED
 *     convert.c  numbers and decimals as numbers of another type
 *     codecs.c   compression, checksums
 *     gather.c   rows of decoded columns in another order
 *     permute.c  random orders of rows
 *     picks.c    the source of each item of a blend
 *     footer.c   the numbers of a footer: rows, where chunks lie, and how they are compressed
 *     check.c    whether a footer fits itself
 *     json.c     lines of JSON with keys that no earlier line had
 *     thrift.c   the structs that headers and footers are made of
 *     module.c   the Python functions
 *
 * Every number that a file holds is checked against the bytes there are and the rows that were planned before it is
 * used. What is not understood wholly is refused with a reason, and the caller decodes the chunk in another way. No
 * threads, no state between calls: a fork breaks nothing.
 *
 * Source: parquet-format, "Data Pages", "Encodings", "Compression", "parquet.thrift".
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Numbers are copied as Parquet stores them, little-endian. The package installs without this module."
#endif

__extension__ typedef unsigned __int128 Word16; /* of 16 bytes */

/* Eight bytes of 0 or 1 at a time, as one word; a bitmap has the first byte in its lowest bit. */
#define EACH_BYTE_1 UINT64_C(0x0101010101010101)

static inline uint64_t word_at(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint8_t pack_byte(uint64_t word) { return (uint8_t)(word * UINT64_C(0x0102040810204080) >> 56); }

static inline uint64_t unpack_byte(uint8_t bits) {
    uint64_t one_each = bits * EACH_BYTE_1 & UINT64_C(0x8040201008040201); /* byte i has bit i alone */
    return (one_each + 127 * EACH_BYTE_1) >> 7 & EACH_BYTE_1;
}

static inline size_t count_ones(const uint8_t *bytes, size_t count) {
    size_t ones = 0, i = 0;
    for (; i + 8 <= count; i += 8) ones += (size_t)(word_at(bytes + i) * EACH_BYTE_1 >> 56);
    for (; i < count; i++) ones += bytes[i];
    return ones;
}

/* Why a chunk is refused; `reasons` in module.c has their names. */
typedef enum {
    DECODED = 0,
    DAMAGED,    /* a length, count or index that does not fit what is there */
    CODEC,      /* compression that is not known, or whose library is not on this machine */
    ENCODING,   /* an encoding or a kind of page that is not known here */
    CHECKSUM,   /* the page's bytes are not those that were written */
    TOO_LARGE,  /* a page of more bytes than the plan allows */
    NO_MEMORY,
    NOT_READ,   /* the file is not the planned file, or did not give the bytes of the pages */
    MISFIT,     /* a value that the wanted type does not hold */
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
typedef enum { UNCOMPRESSED = 0, SNAPPY = 1, GZIP = 2, ZSTD = 6, LZ4_RAW = 7 } Codec;

/* What is looked up or made once a call: functions of the system's libraries, and contexts of zstd and zlib. NULL: not yet. */
typedef struct {
    void *zstd_decompress, *zstd_is_error, *zstd, *lz4_decompress, *zlib_inflate, *zlib_reset, *zlib;
} Codecs;

Reason decompress(int codec, Bytes in, uint8_t *out, size_t size, Codecs *codecs);
void free_codecs(Codecs *codecs);
uint32_t crc32_of(Bytes bytes, uint32_t before);
bool has_codec(int codec);

/* Types of values, in the file and in memory. Decimals are INT32, INT64 or big-endian integers of 1 to 16 bytes in the file,
 * of up to 18 digits or more (LONG_DECIMAL), and integers of 16 bytes in memory. */
typedef enum {
    AS_STORED = 0,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    DECIMAL,
    LONG_DECIMAL
} NumberType;

/* Which losses are allowed; see convert.c. CLIP: floats may become infinities; integer types do not know it here. */
typedef enum { ROUND = 0, EXACT, CLIP } Loss;

enum { MOST_DIGITS = 38 };

/* Values have `stored` bytes in the file (0: booleans, a bit each, which become bytes of 0 and 1). Of values that are not
 * converted (`to` is AS_STORED), little-endian numbers, the first `width` bytes are kept: 1, 2, 4 or 8. */
typedef struct {
    int stored, width;
    bool is_integer; /* INT32 or INT64 */
    int from, to;    /* of NumberType */
    int scale, loss;
} Layout;

static inline bool are_as_stored(Layout layout) { return layout.to == AS_STORED && layout.stored == layout.width; }

/* convert.c */
bool is_layout(Layout layout);

/* Converts values as PLAIN stores them; false if one of them does not fit. */
bool convert(const uint8_t *in, size_t count, Layout layout, uint8_t *out);

/* values.c */

/* The values of a dictionary page, `count` of `width` bytes. */
typedef struct {
    const uint8_t *values;
    size_t count;
    bool is_streamed; /* whether values that are looked up go past the caches */
} Dictionary;

typedef enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    DELTA_BINARY_PACKED = 5,
    RLE_DICTIONARY = 8,
    BYTE_STREAM_SPLIT = 9
} Encoding;

/* Writes exactly `count` values to `out`. `stored`: for values that are converted afterwards. */
Reason decode_values(int encoding, Bytes in, size_t count, Layout layout, const Dictionary *dictionary, Scratch *stored,
                     uint8_t *out);

/* A reader of the RLE / bit-packing hybrid: one run at a time. */
typedef struct {
    Bytes in;
    int bits;
    bool is_packed;
    uint64_t count;         /* numbers of the present run */
    uint32_t repeated;      /* of a run that is not packed */
    const uint8_t *packed;  /* of a packed run: count * bits / 8 bytes */
} Runs;

bool next_run(Runs *runs);

/* Reads `count` levels of 0 to `most` (1 to 3); `levels` gets a byte each, unless all are `most`: *are_most then. */
Reason decode_levels(Bytes in, size_t count, int most, uint8_t *levels, bool *are_most);

bool read_varint(Bytes *in, uint64_t *value);

/* Where the lists of a chunk go, and how far they are there. Their items are the values of the chunk. */
typedef struct {
    int32_t *offsets;    /* rows + 1; NULL where each row is one value */
    uint8_t *validity;   /* a bitmap of the rows, written only if there are null lists */
    bool is_optional;
    int64_t nulls;       /* result: how many of the wanted rows are null lists */
    int64_t rows, items; /* rows that have begun, and wanted items */
} Lists;

/* chunk.c */
typedef struct {
    Bytes pages;
    int codec;
    Layout layout;
    bool is_optional;         /* whether values, or items of lists, may be null */
    int levels;               /* the definition level of values that are there, up to 3, if there are no lists */
    int64_t num_values;       /* of the whole chunk, by the footer; of lists: levels, which are no fewer than items */
    int64_t first, count;     /* the rows that are wanted */
    size_t most_page_bytes;   /* no page may be larger, stored or decompressed */
    bool checks_pages;        /* whether checksums are checked, where pages have them */
    uint8_t *values;          /* room for all values: `room` of `width` bytes, or a bitmap of booleans */
    uint8_t *validity;        /* a bitmap of as many bits, written only if there are nulls */
    int64_t first_bit;        /* the bit of these bitmaps where the chunk begins; 0 for lists */
    int64_t room;             /* `count`; of lists: num_values */
    int64_t nulls;            /* result: how many of the wanted values are null */
    int64_t pages_decoded;    /* result */
    Lists lists;
} Chunk;

typedef struct {
    Scratch chunk, page, dictionary_page, dictionary, stored, values, present, expanded, definitions, repetitions;
    Codecs codecs;
} Work;

/* The items of a data page: rows, or what lists hold. */
typedef struct {
    size_t count, num_values; /* all of them, and those that are not null */
    const uint8_t *present;   /* a byte of 0 or 1 each; NULL: none is null */
    size_t first, last;       /* those that are wanted ... */
    int64_t place;            /* ... go here */
} Items;

/* lists.c: from the levels of a page, its rows (put into `chunk->lists`) and its items. `num_rows`: that it must have; -1
 * if its header does not say. */
Reason read_lists(Chunk *chunk, Bytes repetitions, Bytes definitions, size_t count, int64_t num_rows, Work *work,
                  Items *items);

Reason decode_chunk(Chunk *chunk, Work *work);

/* The values (of lists: levels) of the data pages that are there, by their headers. */
int64_t count_values(Bytes pages);
void free_work(Work *work);

/* Sets `count` bits from bit `from` on: to those of `bytes` (0 or 1 each), or all of them, if that is NULL. */
void set_bits(uint8_t *bits, int64_t from, const uint8_t *bytes, int64_t count);

/* gather.c: out[i] = column[order[i]], of values of `width` bytes: 1, 2, 4, 8 or 16. The caller has checked the order. */
void take_rows(const uint8_t *column, size_t width, const uint32_t *order, size_t count, uint8_t *out);

/* As `take_rows`, with whole lines of a core's cache written past the caches. A store through a cache first reads the line, and
 * throws out another. Call `end_streams` afterwards: another core may else see later stores before these. */
void stream_rows(const uint8_t *column, size_t width, const uint32_t *order, size_t count, uint8_t *out);
void end_streams(void);

enum { LINE_BYTES = 64 };

/* Less stays in a core's cache for who reads it next. Tests stream all. */
#ifndef LEAST_STREAMED_BYTES
#define LEAST_STREAMED_BYTES ((size_t)128 << 10)
#endif

/* Where columns of one width lie: the address of the first, and the bytes from column to column. */
typedef struct {
    uint64_t address;
    int64_t pitch;
} Side;

/* `count` columns of `width` bytes a row (1, 2, 4 or 8), and room for as many rows as the order has. */
typedef struct {
    Side out;
    int64_t count, width;
} Run;

/* Runs of columns, each in `num_parts` parts that have the same rows in all columns. */
typedef struct {
    size_t count, num_parts;
    const int64_t *part_rows;
    const Side *parts; /* all parts of the first run first */
    const Run *runs;
} Columns;

/* The order in 32 bits; false if it has a number that is not below `rows`, which are of 32 bits. */
bool short_order(const int64_t *order, size_t count, uint64_t rows, uint32_t *shorter);

/* Row order[i] of each column becomes its row i, as in `take_rows`. A column's parts are joined first, in
 * `joined`, which all columns share. NULL: its only part is read where it is. */
void gather_columns(const Columns *columns, const uint32_t *order, size_t count, uint8_t *joined);

/* The rows of all parts, one part after the other. */
void join_columns(const Columns *columns);

/* picks.c: `BlendRule` of `_core/blend_index.py`, arrays of one number for each source. */
typedef struct {
    const double *shares, *half_slopes, *base, *limits;
    size_t sources;
    double least;
} BlendRule;

/* Picks `count` items from `place` on, which is relative to the rule's start, as `least` is. */
void pick_sources(const BlendRule *rule, double place, size_t count, double *counts, int16_t *picks, int64_t *numbers);

/* permute.c: the key of a permutation, as `_core/permute.py` has it. */
typedef struct {
    uint64_t seed, epoch, purpose, index;
} PermutationKey;

/* Writes a permutation of the numbers below `count`: the stable order of as many random words. False: there is no memory,
 * or `count` takes more than 32 bits. */
bool permute(const PermutationKey *key, size_t count, int64_t *order);

/* The stable order of words that are random: others take time. count: of 32 bits. room: for as many words. */
void order_words(const uint64_t *words, size_t count, uint64_t *room, int64_t *order);

/* footer.c: what a footer says of its row groups. For each row group GROUP_NUMBERS numbers, and then for each leaf column
 * CHUNK_NUMBERS, in the order of the enums; -1 for none. */
enum { GROUP_ROWS, GROUP_BYTES, GROUP_NUMBERS };
enum {
    CHUNK_CODEC,
    CHUNK_VALUES,
    CHUNK_UNCOMPRESSED,
    CHUNK_COMPRESSED,
    CHUNK_DATA,
    CHUNK_DICTIONARY,
    CHUNK_NULLS,
    CHUNK_NUMBERS
};

typedef struct {
    uint64_t groups, leaves;
    int64_t rows;             /* of the file */
    size_t head_end;          /* version and schema, the first fields, end here */
    size_t tail_start;        /* and here begins what comes after the row groups */
} FooterShape;

/* False if a footer is not understood wholly: chunks in other files, encrypted, or without what they must have. */
bool read_footer_shape(Bytes footer, FooterShape *shape);

/* `numbers` has room for what the shape says. */
bool read_footer(Bytes footer, const FooterShape *shape, int64_t *numbers);

static inline size_t numbers_of(const FooterShape *shape) {
    return (size_t)shape->groups * (GROUP_NUMBERS + (size_t)shape->leaves * CHUNK_NUMBERS);
}

/* check.c: what does not fit in a footer, with the row group and leaf column where that was found (`faults` in module.c
 * has the texts), and whether the bounds in statistics are values of their columns. */
typedef enum { FITS = 0, NOT_PARSED, NO_TREE, TOO_DEEP, IS_ENCRYPTED, OTHER_CHUNKS, OTHER_TYPE, OTHER_LEVELS } FooterFault;

enum { MOST_SCHEMA_DEPTH = 99 }; /* of nodes with children; with the leaves 100 levels, as pyarrow has it */

typedef struct {
    FooterFault fault;
    int64_t group, leaf; /* -1: before the row groups */
    bool has_sound_bounds;
} FooterVerdict;

FooterVerdict check_footer(Bytes footer);

/* json.c: the keys and kinds of values that earlier lines had, as numbers in a table; 0 is a free slot. */
typedef struct {
    uint64_t *slots, mask; /* there are mask + 1 of them, a power of 2 */
    uint64_t root;         /* the number of the outermost object */
} Seen;

/* Bytes of a line, and whether it was understood: then the table has what is new in it. */
typedef struct {
    int64_t start, stop, is_understood;
} NewLine;

typedef struct {
    NewLine *lines;
    size_t count, room;
} News;

/* Adds the first `most` lines that show something new, or are not understood; false if there is no memory. */
bool find_news(Bytes lines, Seen seen, size_t most, News *news);

#endif
