/* One column chunk: its pages, one after the other, and which of their rows are wanted.
 *
 *     header  [levels] [values]  header  [levels] [values] ...       a dictionary page may come first
 *
 * Pages outside of the wanted rows are passed over by their headers, but for lists, whose rows only levels tell. A page
 * whose items are all wanted, without nulls, is decoded to where they shall lie; else it is decoded into scratch memory
 * and copied from there.
 *
 * Source: parquet-format, "parquet.thrift" (PageHeader), "Data Pages"; Thrift compact protocol.
 */
#include "engine.h"
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
    free(work->chunk.bytes);
    free(work->page.bytes);
    free(work->dictionary_page.bytes);
    free(work->dictionary.bytes);
    free(work->stored.bytes);
    free(work->values.bytes);
    free(work->present.bytes);
    free(work->expanded.bytes);
    free(work->definitions.bytes);
    free(work->repetitions.bytes);
    free_codecs(&work->codecs);
}

enum { DATA_PAGE = 0, INDEX_PAGE = 1, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };

/* Numbers that a header lacks are -1. */
typedef struct {
    int64_t type, size, stored_size, crc, count, encoding, level_encoding, repetition_encoding;
    int64_t nulls, rows, level_bytes, repetition_bytes;
    bool has_crc, is_compressed;
    int64_t kind; /* the page's type, by which of the structs of the types is there */
} Header;

static bool read_header(Bytes *in, Header *header) {
    *header = (Header){-1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1, -1, false, true, -1};
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
            int64_t *fields[] = {NULL, &header->count, &header->encoding, &header->level_encoding,
                                 &header->repetition_encoding};
            good = read_numbers(in, fields, 5, NULL, 0);
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
    if (chunk->checks_pages && header->has_crc && crc32_of(stored, 0) != (uint32_t)header->crc) return CHECKSUM;
    return DECODED;
}

static Reason read_dictionary(const Chunk *chunk, const Header *header, Bytes stored, Work *work, Dictionary *dictionary) {
    if (dictionary->values != NULL || chunk->layout.stored == 0) return ENCODING;
    if (header->encoding != PLAIN && header->encoding != PLAIN_DICTIONARY) return ENCODING;
    uint8_t *page = scratch_of(&work->dictionary_page, (size_t)header->size);
    if (page == NULL) return NO_MEMORY;
    Reason reason = decompress(chunk->codec, stored, page, (size_t)header->size, &work->codecs);
    if (reason != DECODED) return reason;
    /* Every value takes bytes of the page, so that the count is bounded by it. */
    if (!is_within(header->count, (uint64_t)header->size / (uint64_t)chunk->layout.stored)) return DAMAGED;
    size_t count = (size_t)header->count;
    if (are_as_stored(chunk->layout)) { /* as they lie */
        *dictionary = (Dictionary){page, count, false};
        return DECODED;
    }
    uint8_t *values = scratch_of(&work->dictionary, count * (size_t)chunk->layout.width);
    if (values == NULL) return NO_MEMORY;
    Bytes plain = {page, page + header->size};
    reason = decode_values(PLAIN, plain, count, chunk->layout, NULL, NULL, values);
    *dictionary = (Dictionary){values, count, false};
    return reason;
}

static bool has_lists(const Chunk *chunk) { return chunk->lists.offsets != NULL; }

/* Takes `length` bytes from the front. */
static Reason take(Bytes *in, int64_t length, Bytes *front) {
    if (!is_within(length, left_of(*in))) return DAMAGED;
    *front = (Bytes){in->at, in->at + length};
    in->at = front->end;
    return DECODED;
}

/* Levels of a page of version 1, behind their length. */
static Reason take_levels(Bytes *in, int64_t encoding, Bytes *levels) {
    if (encoding != RLE) return ENCODING;
    uint32_t length;
    if (left_of(*in) < 4) return DAMAGED;
    memcpy(&length, in->at, 4);
    in->at += 4;
    return take(in, length, levels);
}

/* The levels and values of a data page. `direct`: where its values may be decompressed to, if they are plain and a copy
 * would be all there is to do; NULL for nowhere. `is_direct`: whether they were. */
static Reason open_page(const Chunk *chunk, const Header *header, Bytes stored, Work *work, uint8_t *direct,
                        Bytes *repetitions, Bytes *definitions, Bytes *values, bool *is_direct) {
    size_t size = (size_t)header->size;
    bool has_definitions = chunk->is_optional || has_lists(chunk);
    Reason reason;
    *repetitions = *definitions = (Bytes){NULL, NULL};
    *is_direct = false;
    if (header->type == DATA_PAGE_V2) {
        if ((header->repetition_bytes > 0 && !has_lists(chunk)) || (header->level_bytes > 0 && !has_definitions))
            return ENCODING;
        /* Lengths that a header lacks are refused. */
        if ((reason = take(&stored, header->repetition_bytes, repetitions)) != DECODED) return reason;
        if ((reason = take(&stored, header->level_bytes, definitions)) != DECODED) return reason;
        if ((uint64_t)header->repetition_bytes + (uint64_t)header->level_bytes > size) return DAMAGED;
        size -= (size_t)header->repetition_bytes + (size_t)header->level_bytes;
    }
    bool has_levels_inside = header->type == DATA_PAGE && has_definitions;
    bool is_compressed = chunk->codec != UNCOMPRESSED && header->is_compressed;
    if (!is_compressed) {
        if (left_of(stored) != size) return DAMAGED;
        *values = stored;
    } else if (size == 0 && header->type == DATA_PAGE_V2) {
        *values = (Bytes){stored.at, stored.at}; /* a page of nulls: writers differ in what they compress it to */
    } else {
        bool fits = size == (size_t)header->count * (size_t)chunk->layout.width;
        *is_direct = direct != NULL && !has_levels_inside && fits && header->encoding == PLAIN &&
                     are_as_stored(chunk->layout);
        uint8_t *page = *is_direct ? direct : scratch_of(&work->page, size);
        if (page == NULL) return NO_MEMORY;
        reason = decompress(chunk->codec, stored, page, size, &work->codecs);
        if (reason != DECODED) return reason;
        *values = (Bytes){page, page + size};
    }
    if (!has_levels_inside) return DECODED;
    if (has_lists(chunk) && (reason = take_levels(values, header->repetition_encoding, repetitions)) != DECODED)
        return reason;
    return take_levels(values, header->level_encoding, definitions);
}

static void set_bit(uint8_t *bits, int64_t at, bool is_set) {
    uint8_t bit = (uint8_t)(1 << at % 8);
    bits[at / 8] = (uint8_t)(is_set ? bits[at / 8] | bit : bits[at / 8] & ~bit);
}

void set_bits(uint8_t *bits, int64_t from, const uint8_t *bytes, int64_t count) {
    int64_t i = 0;
    for (; i < count && (from + i) % 8 != 0; i++) set_bit(bits, from + i, bytes == NULL || bytes[i]);
    if (bytes == NULL) {
        memset(bits + (from + i) / 8, 255, (size_t)((count - i) / 8));
        i += (count - i) / 8 * 8;
    } else {
        for (; i + 8 <= count; i += 8) bits[(from + i) / 8] = pack_byte(word_at(bytes + i));
    }
    for (; i < count; i++) set_bit(bits, from + i, bytes == NULL || bytes[i]);
}

/* Puts the values of present rows where their rows are; others are 0. `from` has one value more that may be read. */
#define SPREAD(TYPE)                                                                    \
    {                                                                                   \
        TYPE *to = (TYPE *)out, value;                                                  \
        for (size_t i = 0; i < count;) {                                                \
            if (i + 8 <= count && word_at(present + i) == EACH_BYTE_1) {                \
                /* One by one, which becomes moves of vectors: for 64 bytes GCC calls a slow string instruction. */ \
                for (size_t end = i + 8; i < end; i++, from += sizeof value) {          \
                    memcpy(&value, from, sizeof value);                                 \
                    to[i] = value;                                                      \
                }                                                                       \
                continue;                                                               \
            }                                                                           \
            for (size_t end = i + 8 < count ? i + 8 : count; i < end; i++) {            \
                memcpy(&value, from, sizeof value);                                     \
                to[i] = (TYPE)(value & (TYPE) - (TYPE)present[i]);                      \
                from += present[i] * sizeof value;                                      \
            }                                                                           \
        }                                                                               \
        break;                                                                          \
    }

static void spread(const uint8_t *from, const uint8_t *present, size_t count, int width, uint8_t *out) {
    switch (width) {
        case 1: SPREAD(uint8_t)
        case 2: SPREAD(uint16_t)
        case 4: SPREAD(uint32_t)
        case 8: SPREAD(uint64_t)
        default: SPREAD(Word16)
    }
}

/* Of a page whose items are rows, and that begins at row `begin` of the chunk. */
static Items rows_of(const Chunk *chunk, int64_t begin, int64_t count) {
    int64_t stop = chunk->first + chunk->count;
    Items items = {.count = (size_t)count, .num_values = (size_t)count};
    items.first = begin < chunk->first ? (size_t)(chunk->first - begin) : 0;
    items.last = begin + count > stop ? (size_t)(stop - begin) : (size_t)count;
    items.place = begin + (int64_t)items.first - chunk->first;
    return items;
}

static Reason read_rows(Bytes definitions, int levels, Work *work, Items *items) {
    uint8_t *present = scratch_of(&work->present, items->count);
    bool all_present;
    if (present == NULL) return NO_MEMORY;
    Reason reason = decode_levels(definitions, items->count, levels, present, &all_present);
    if (reason != DECODED || all_present) return reason;
    for (size_t i = 0; levels > 1 && i < items->count; i++) present[i] = present[i] == levels;
    items->present = present;
    items->num_values = count_ones(present, items->count);
    return DECODED;
}

/* Where the values of a page lie in the end, if it can be decoded to there. */
static uint8_t *goal_of(const Chunk *chunk, const Items *items) {
    if (chunk->layout.stored == 0 || items->first != 0 || items->last != items->count) return NULL;
    return chunk->values + (size_t)items->place * (size_t)chunk->layout.width;
}

/* Decodes a data page that begins at value `begin` of the chunk, and keeps what is wanted. */
static Reason read_page(Chunk *chunk, const Header *header, Bytes stored, int64_t begin, Work *work,
                        const Dictionary *dictionary) {
    size_t width = (size_t)chunk->layout.width;
    Items items = {0};
    if (!has_lists(chunk)) items = rows_of(chunk, begin, header->count);
    Bytes repetitions, definitions, values;
    bool is_direct;
    uint8_t *direct = has_lists(chunk) ? NULL : goal_of(chunk, &items);
    Reason reason = open_page(chunk, header, stored, work, direct, &repetitions, &definitions, &values, &is_direct);
    if (reason != DECODED) return reason;
    if (has_lists(chunk))
        reason = read_lists(chunk, repetitions, definitions, (size_t)header->count, header->rows, work, &items);
    else if (chunk->is_optional)
        reason = read_rows(definitions, chunk->levels, work, &items);
    if (reason != DECODED) return reason;
    if (header->type == DATA_PAGE_V2 && header->nulls != header->count - (int64_t)items.num_values) return DAMAGED;
    if (is_direct) return items.present == NULL ? DECODED : DAMAGED; /* as many values as rows, and nulls among them */
    uint8_t *goal = goal_of(chunk, &items), *decoded = goal;
    const uint8_t *packed = values.at; /* values without those of nulls, where they lie already */
    bool lie_there = items.present != NULL && header->encoding == PLAIN && are_as_stored(chunk->layout) &&
                     left_of(values) / width > items.num_values;
    if (!lie_there) {
        if (goal == NULL || items.present != NULL) {
            decoded = scratch_of(&work->values, (items.num_values + 1) * width);
            if (decoded == NULL) return NO_MEMORY;
        }
        Dictionary looked_up = *dictionary;
        looked_up.is_streamed = decoded == goal && (uint64_t)chunk->count * width >= LEAST_STREAMED_BYTES;
        reason = decode_values((int)header->encoding, values, items.num_values, chunk->layout, &looked_up,
                               &work->stored, decoded);
        if (looked_up.is_streamed) end_streams();
        if (reason != DECODED) return reason;
        packed = decoded;
    }
    int64_t wanted = (int64_t)(items.last - items.first);
    if (items.present != NULL) {
        if (!lie_there) memset(decoded + items.num_values * width, 0, width);
        decoded = goal != NULL ? goal : scratch_of(&work->expanded, items.count * width);
        if (decoded == NULL) return NO_MEMORY;
        spread(packed, items.present, items.count, chunk->layout.width, decoded);
        if (chunk->nulls == 0) set_bits(chunk->validity, chunk->first_bit, NULL, chunk->room);
        set_bits(chunk->validity, chunk->first_bit + items.place, items.present + items.first, wanted);
        chunk->nulls += wanted - (int64_t)count_ones(items.present + items.first, (size_t)wanted);
    }
    if (chunk->layout.stored == 0) {
        set_bits(chunk->values, chunk->first_bit + items.place, decoded + items.first, wanted);
    } else if (goal == NULL) {
        memcpy(chunk->values + (size_t)items.place * width, decoded + items.first * width, (size_t)wanted * width);
    }
    return DECODED;
}

int64_t count_values(Bytes pages) {
    int64_t values = 0;
    Header header;
    while (pages.at < pages.end && read_header(&pages, &header)) {
        if (!is_within(header.stored_size, left_of(pages))) break;
        pages.at += header.stored_size;
        if (header.type != DATA_PAGE && header.type != DATA_PAGE_V2) continue;
        if (!is_within(header.count, INT32_MAX) || values > INT64_MAX - header.count) break;
        values += header.count;
    }
    return values;
}

/* Whether a wanted row may still lie in pages from value `at` on; a list may go on in the next page. */
static bool goes_on(const Chunk *chunk, int64_t at) {
    int64_t stop = chunk->first + chunk->count;
    if (!has_lists(chunk)) return at < stop;
    return chunk->count > 0 && at < chunk->num_values && chunk->lists.rows <= stop;
}

Reason decode_chunk(Chunk *chunk, Work *work) {
    Dictionary dictionary = {NULL, 0, false};
    Bytes in = chunk->pages;
    Lists *lists = &chunk->lists;
    int64_t at = 0;
    chunk->nulls = chunk->pages_decoded = lists->nulls = lists->rows = lists->items = 0;
    while (goes_on(chunk, at)) {
        Header header;
        if (!read_header(&in, &header)) return DAMAGED;
        if (!is_within(header.stored_size, left_of(in))) return DAMAGED;
        Bytes stored = {in.at, in.at + header.stored_size};
        in.at = stored.end;
        if (header.kind != header.type) return DAMAGED;
        Reason reason = DECODED;
        switch (header.type) {
            case DICTIONARY_PAGE:
                if (at > 0) return ENCODING;
                reason = check_page(chunk, &header, stored);
                if (reason == DECODED) reason = read_dictionary(chunk, &header, stored, work, &dictionary);
                break;
            case DATA_PAGE:
            case DATA_PAGE_V2:
                if (!is_within(header.count, (uint64_t)(chunk->num_values - at))) return DAMAGED;
                if (header.type == DATA_PAGE_V2 && header.rows < 0) return DAMAGED;
                if (header.type == DATA_PAGE_V2 && !has_lists(chunk) && header.rows != header.count) return DAMAGED;
                if (header.count > 0 && (has_lists(chunk) || at + header.count > chunk->first)) {
                    reason = check_page(chunk, &header, stored);
                    if (reason == DECODED) reason = read_page(chunk, &header, stored, at, work, &dictionary);
                    chunk->pages_decoded++;
                }
                at += header.count;
                break;
            default: return ENCODING;
        }
        if (reason != DECODED) return reason;
    }
    if (!has_lists(chunk)) return DECODED;
    if (chunk->count > 0 && lists->rows < chunk->first + chunk->count) return DAMAGED;
    lists->offsets[chunk->count] = (int32_t)lists->items;
    return DECODED;
}
