/* One column chunk: its pages, one after the other, and which of their rows are wanted.
 *
 *     header  [levels] [values]  header  [levels] [values] ...       a dictionary page may come first
 *
 * Pages outside of the wanted rows are passed over by their headers. A page whose rows are all wanted, without nulls, is
 * decoded to where the rows shall lie; else it is decoded into scratch memory and copied from there.
 *
 * Source: parquet-format, "parquet.thrift" (PageHeader), "Data Pages"; Thrift compact protocol.
 */
#include "decoder.h"
#include "thrift.h"

#include <stdlib.h>
#include <string.h>

enum { SLACK = 64 };

uint8_t *scratch_of(Scratch *scratch, size_t size) {
    if (scratch->size < size + SLACK) {
        free(scratch->bytes);
        scratch->bytes = malloc(size + SLACK);
        scratch->size = scratch->bytes == NULL ? 0 : size + SLACK;
    }
    return scratch->bytes;
}

void free_work(Work *work) {
    free(work->page.bytes);
    free(work->dictionary_page.bytes);
    free(work->dictionary.bytes);
    free(work->values.bytes);
    free(work->present.bytes);
    free(work->expanded.bytes);
}

enum { DATA_PAGE = 0, INDEX_PAGE = 1, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };

/* Numbers that a header lacks are -1. */
typedef struct {
    int64_t type, size, stored_size, crc, count, encoding, level_encoding;
    int64_t nulls, rows, level_bytes, repetition_bytes;
    bool has_crc, is_compressed;
    int64_t kind; /* the page's type, by which of the structs of the types is there */
} Header;

static bool read_header(Bytes *in, Header *header) {
    *header = (Header){-1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1, false, true, -1};
    int64_t number = 0;
    int type;
    while (read_field(in, &number, &type)) {
        if (type == 0) return true;
        bool good;
        if (number == 1 && type == I32) {
            good = read_number(in, &header->type);
        } else if (number == 2 && type == I32) {
            good = read_number(in, &header->size);
        } else if (number == 3 && type == I32) {
            good = read_number(in, &header->stored_size);
        } else if (number == 4 && type == I32) {
            good = header->has_crc = read_number(in, &header->crc);
        } else if (number == 5 && type == STRUCT) {
            int64_t *fields[] = {NULL, &header->count, &header->encoding, &header->level_encoding};
            good = read_numbers(in, fields, 4, NULL, 0);
            header->kind = DATA_PAGE;
        } else if (number == 7 && type == STRUCT) {
            int64_t *fields[] = {NULL, &header->count, &header->encoding};
            good = read_numbers(in, fields, 3, NULL, 0);
            header->kind = DICTIONARY_PAGE;
        } else if (number == 8 && type == STRUCT) {
            int64_t *fields[] = {NULL, &header->count, &header->nulls, &header->rows, &header->encoding,
                                 &header->level_bytes, &header->repetition_bytes};
            good = read_numbers(in, fields, 7, &header->is_compressed, 7);
            header->kind = DATA_PAGE_V2;
        } else {
            good = pass_value(in, type, 1, false);
        }
        if (!good) return false;
    }
    return false;
}

static bool is_within(int64_t number, uint64_t most) { return number >= 0 && (uint64_t)number <= most; }

static Reason check_page(const Chunk *chunk, const Header *header, Bytes stored) {
    if (!is_within(header->size, chunk->most_page_bytes)) return header->size < 0 ? DAMAGED : TOO_LARGE;
    if (chunk->checks_pages && header->has_crc && crc32_of(stored) != (uint32_t)header->crc) return CHECKSUM;
    return DECODED;
}

static Reason read_dictionary(const Chunk *chunk, const Header *header, Bytes stored, Work *work, Dictionary *dictionary) {
    if (dictionary->values != NULL || chunk->layout.stored == 0) return ENCODING;
    if (header->encoding != PLAIN && header->encoding != PLAIN_DICTIONARY) return ENCODING;
    uint8_t *page = scratch_of(&work->dictionary_page, (size_t)header->size);
    if (page == NULL) return NO_MEMORY;
    Reason reason = decompress(chunk->codec, stored, page, (size_t)header->size);
    if (reason != DECODED) return reason;
    /* Every value takes bytes of the page, so that the count is bounded by it. */
    if (!is_within(header->count, (uint64_t)header->size / (uint64_t)chunk->layout.stored)) return DAMAGED;
    size_t count = (size_t)header->count;
    uint8_t *values = scratch_of(&work->dictionary, count * (size_t)chunk->layout.width);
    if (values == NULL) return NO_MEMORY;
    Bytes plain = {page, page + header->size};
    reason = decode_values(PLAIN, plain, count, chunk->layout, NULL, values);
    *dictionary = (Dictionary){values, count};
    return reason;
}

/* The levels and values of a data page. `direct`: where its values may be decompressed to, if they are plain and a copy
 * would be all there is to do; NULL for nowhere. `is_direct`: whether they were. */
static Reason open_page(const Chunk *chunk, const Header *header, Bytes stored, Work *work, uint8_t *direct,
                        Bytes *levels, Bytes *values, bool *is_direct) {
    size_t size = (size_t)header->size, level_bytes = 0;
    *levels = (Bytes){NULL, NULL};
    *is_direct = false;
    if (header->type == DATA_PAGE_V2) {
        if (header->repetition_bytes != 0) return ENCODING;
        if (!is_within(header->level_bytes, left_of(stored))) return DAMAGED;
        level_bytes = (size_t)header->level_bytes;
        if (level_bytes > size) return DAMAGED;
        *levels = (Bytes){stored.at, stored.at + level_bytes};
        stored.at += level_bytes;
        size -= level_bytes;
        if (!chunk->is_optional && level_bytes != 0) return ENCODING;
    }
    bool is_compressed = chunk->codec != UNCOMPRESSED && header->is_compressed;
    if (!is_compressed) {
        if (left_of(stored) != size) return DAMAGED;
        *values = stored;
    } else if (size == 0 && header->type == DATA_PAGE_V2) {
        *values = (Bytes){stored.at, stored.at}; /* a page of nulls: writers differ in what they compress it to */
    } else {
        bool has_levels_inside = header->type == DATA_PAGE && chunk->is_optional;
        bool fits = size == (size_t)header->count * (size_t)chunk->layout.width;
        *is_direct = direct != NULL && !has_levels_inside && fits && header->encoding == PLAIN &&
                     chunk->layout.stored == chunk->layout.width;
        uint8_t *page = *is_direct ? direct : scratch_of(&work->page, size);
        if (page == NULL) return NO_MEMORY;
        Reason reason = decompress(chunk->codec, stored, page, size);
        if (reason != DECODED) return reason;
        *values = (Bytes){page, page + size};
    }
    if (header->type == DATA_PAGE && chunk->is_optional) {
        if (header->level_encoding != RLE) return ENCODING;
        uint32_t length;
        if (left_of(*values) < 4) return DAMAGED;
        memcpy(&length, values->at, 4);
        values->at += 4;
        if (length > left_of(*values)) return DAMAGED;
        *levels = (Bytes){values->at, values->at + length};
        values->at += length;
    }
    return DECODED;
}

static void set_bits(uint8_t *bits, int64_t from, const uint8_t *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t at = from + i;
        uint8_t bit = (uint8_t)(1 << at % 8);
        bits[at / 8] = (uint8_t)(bytes == NULL || bytes[i] ? bits[at / 8] | bit : bits[at / 8] & ~bit);
    }
}

/* Puts the values of present rows where their rows are; others are 0. `packed` has one value more that may be read. */
#define SPREAD(TYPE)                                                                    \
    {                                                                                   \
        TYPE *to = (TYPE *)out;                                                         \
        const TYPE *from = (const TYPE *)packed;                                        \
        for (size_t i = 0, j = 0; i < count; j += present[i], i++)                      \
            to[i] = (TYPE)(from[j] & (TYPE) - (TYPE)present[i]);                        \
        break;                                                                          \
    }

static void spread(const uint8_t *packed, const uint8_t *present, size_t count, int width, uint8_t *out) {
    switch (width) {
        case 1: SPREAD(uint8_t)
        case 2: SPREAD(uint16_t)
        case 4: SPREAD(uint32_t)
        default: SPREAD(uint64_t)
    }
}

/* Decodes a data page that begins at row `begin` of the chunk, and keeps its wanted rows. */
static Reason read_page(Chunk *chunk, const Header *header, Bytes stored, int64_t begin, Work *work,
                        const Dictionary *dictionary) {
    size_t count = (size_t)header->count, width = (size_t)chunk->layout.width;
    int64_t first = begin < chunk->first ? chunk->first - begin : 0; /* of the page's rows, those from here on ... */
    int64_t last = begin + header->count > chunk->first + chunk->count ? chunk->first + chunk->count - begin : header->count;
    int64_t place = begin + first - chunk->first;                    /* ... go here */
    bool is_boolean = chunk->layout.stored == 0, is_whole = first == 0 && last == header->count;
    uint8_t *goal = is_whole && !is_boolean ? chunk->values + (size_t)place * width : NULL;
    Bytes levels, values;
    bool is_direct, all_present = true;
    Reason reason = open_page(chunk, header, stored, work, goal, &levels, &values, &is_direct);
    if (reason != DECODED) return reason;
    uint8_t *present = NULL;
    size_t num_values = count;
    if (chunk->is_optional) {
        present = scratch_of(&work->present, count);
        if (present == NULL) return NO_MEMORY;
        reason = decode_levels(levels, count, present, &all_present);
        if (reason != DECODED) return reason;
        if (!all_present)
            for (size_t i = num_values = 0; i < count; i++) num_values += present[i];
    }
    if (header->type == DATA_PAGE_V2 && header->nulls != (int64_t)(count - num_values)) return DAMAGED;
    if (is_direct && !all_present) return DAMAGED; /* as many values as rows, and nulls among them */
    if (is_direct) return DECODED;
    uint8_t *decoded = goal;
    if (goal == NULL || !all_present) {
        decoded = scratch_of(&work->values, (num_values + 1) * width);
        if (decoded == NULL) return NO_MEMORY;
    }
    reason = decode_values((int)header->encoding, values, num_values, chunk->layout, dictionary, decoded);
    if (reason != DECODED) return reason;
    if (!all_present) {
        memset(decoded + num_values * width, 0, width);
        uint8_t *expanded = goal != NULL ? goal : scratch_of(&work->expanded, count * width);
        if (expanded == NULL) return NO_MEMORY;
        spread(decoded, present, count, chunk->layout.width, expanded);
        decoded = expanded;
        if (chunk->nulls == 0) memset(chunk->validity, 255, (size_t)(chunk->count + 7) / 8);
        set_bits(chunk->validity, place, present + first, last - first);
        for (int64_t i = first; i < last; i++) chunk->nulls += !present[i];
    }
    if (is_boolean) {
        set_bits(chunk->values, place, decoded + first, last - first);
    } else if (goal == NULL) {
        memcpy(chunk->values + (size_t)place * width, decoded + (size_t)first * width, (size_t)(last - first) * width);
    }
    return DECODED;
}

int64_t count_rows(Bytes pages) {
    int64_t rows = 0;
    Header header;
    while (pages.at < pages.end && read_header(&pages, &header)) {
        if (!is_within(header.stored_size, left_of(pages))) break;
        pages.at += header.stored_size;
        if (header.type != DATA_PAGE && header.type != DATA_PAGE_V2) continue;
        if (!is_within(header.count, INT32_MAX) || rows > INT64_MAX - header.count) break;
        rows += header.count;
    }
    return rows;
}

Reason decode_chunk(Chunk *chunk, Work *work) {
    Dictionary dictionary = {NULL, 0};
    Bytes in = chunk->pages;
    int64_t row = 0, stop = chunk->first + chunk->count;
    chunk->nulls = chunk->pages_decoded = 0;
    while (row < stop) {
        Header header;
        if (!read_header(&in, &header)) return DAMAGED;
        if (!is_within(header.stored_size, left_of(in))) return DAMAGED;
        Bytes stored = {in.at, in.at + header.stored_size};
        in.at = stored.end;
        if (header.kind != header.type) return DAMAGED;
        Reason reason = DECODED;
        switch (header.type) {
            case DICTIONARY_PAGE:
                if (row > 0) return ENCODING;
                reason = check_page(chunk, &header, stored);
                if (reason == DECODED) reason = read_dictionary(chunk, &header, stored, work, &dictionary);
                break;
            case DATA_PAGE:
            case DATA_PAGE_V2:
                if (!is_within(header.count, (uint64_t)(chunk->num_values - row))) return DAMAGED;
                if (header.type == DATA_PAGE_V2 && header.rows != header.count) return DAMAGED;
                if (row + header.count > chunk->first && header.count > 0) {
                    reason = check_page(chunk, &header, stored);
                    if (reason == DECODED) reason = read_page(chunk, &header, stored, row, work, &dictionary);
                    chunk->pages_decoded++;
                }
                row += header.count;
                break;
            default: return ENCODING;
        }
        if (reason != DECODED) return reason;
    }
    return DECODED;
}
