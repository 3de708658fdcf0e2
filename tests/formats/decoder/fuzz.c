/* Decodes mutated column chunks until the time is over; the sanitizers end the process at the first fault.
 *
 *     fuzz SEEDS SECONDS RANDOM_SEED
 *
 * SEEDS: a file of seeds, one after the other, each 13 int64 (codec, stored, width, is_integer, is_optional, num_values,
 * first, count, most_page_bytes, checks_pages, lists, conversion as in module.c, length) and the pages; or FOOTER or LINES,
 * eleven zeros, length, and a footer or lines of JSON.
 * lists: 0 for flat chunks, 1 for lists, 2 for those that may be null. A mutation flips bits, sets bytes, cuts, doubles or
 * exchanges spans, or takes a number at random for one of the arguments. Buffers are allocated for each run with the
 * exact size, so that one byte too far is found. Offsets of a chunk that decoded must ascend to no more than its values.
 * Prints how many runs there were and how many decoded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine.h"

enum { FIELDS = 13, CONVERSION = 11, LENGTH = 12, FOOTER = 100, LINES = 101 };
typedef struct {
    int64_t fields[FIELDS];
    uint8_t *pages;
} Seed;

static uint64_t state;

static uint64_t next_number(void) { /* splitmix64 */
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static size_t below(size_t limit) { return limit == 0 ? 0 : (size_t)(next_number() % limit); }

static size_t mutate(uint8_t *bytes, size_t length, const Seed *other) {
    static const uint8_t interesting[] = {0, 1, 2, 127, 128, 255, 254, 0x15, 0x80, 0x7f};
    for (size_t times = 1 + below(4); times > 0 && length > 0; times--) {
        /* Headers come first in a page, so half of the changes are near the front. */
        size_t at = below(2) ? below(length) : below(length < 64 ? length : 64);
        size_t span = 1 + below(length - at < 16 ? length - at : 16);
        switch (below(7)) {
            case 0: bytes[at] ^= (uint8_t)(1 << below(8)); break;
            case 1: bytes[at] = interesting[below(sizeof interesting)]; break;
            case 2: bytes[at] = (uint8_t)next_number(); break;
            case 3: length = at; break;
            case 4: memset(bytes + at, interesting[below(sizeof interesting)], span); break;
            case 5: memmove(bytes + at, bytes + below(length - span + 1), span); break;
            default: {
                size_t most = (size_t)other->fields[LENGTH], from = below(most);
                size_t some = most - from < span ? most - from : span;
                memcpy(bytes + at, other->pages + from, some);
            }
        }
    }
    return length;
}

/* Orders few or many different words, and ends the process if the order is not the stable one. */
static void check_order(void) {
    size_t count = below(below(4) ? 40 : 3000), distinct = 1 + below(below(2) ? 5 : 100000);
    uint64_t *words = malloc((count + 1) * sizeof *words), *room = malloc((count + 1) * sizeof *room), high = next_number();
    int64_t *order = malloc((count + 1) * sizeof *order);
    for (size_t i = 0; i < count; i++) words[i] = distinct > 5 ? next_number() : high ^ below(distinct);
    order_words(words, count, room, order);
    for (size_t i = 1; i < count; i++) {
        uint64_t before = words[order[i - 1]], word = words[order[i]];
        if (before > word || (before == word && order[i - 1] >= order[i])) abort();
    }
    free(words);
    free(room);
    free(order);
}

/* Ends the process if the checksum of random bytes is not the one computed bit by bit. */
static void check_checksum(void) {
    size_t length = below(below(4) ? 200 : 5000);
    uint8_t *bytes = malloc(length + 1);
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i] = (uint8_t)next_number();
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    uint8_t *cut = bytes + below(length + 1);
    if (crc32_of((Bytes){cut, bytes + length}, crc32_of((Bytes){bytes, cut}, 0)) != ~crc) abort();
    free(bytes);
}

/* Sets bits of a bitmap that is as long as it must be; ends the process if another bit is not what it was or should be. */
static void check_bits(void) {
    size_t count = below(below(4) ? 40 : 3000), from = below(70), size = (from + count + 7) / 8;
    uint8_t *bytes = malloc(count + 1), *bits = malloc(size + 1), *before = malloc(size + 1);
    bool are_all = !below(4), are_many = below(2);
    for (size_t i = 0; i < count; i++) bytes[i] = are_many ? below(50) != 0 : (uint8_t)below(2);
    for (size_t i = 0; i < size; i++) before[i] = bits[i] = (uint8_t)next_number();
    set_bits(bits, (int64_t)from, are_all ? NULL : bytes, (int64_t)count);
    size_t ones = 0;
    for (size_t i = 0; i < 8 * size; i++) {
        bool is_meant = i >= from && i < from + count;
        uint8_t wanted = !is_meant ? before[i / 8] >> i % 8 & 1 : are_all ? 1 : bytes[i - from];
        if ((bits[i / 8] >> i % 8 & 1) != wanted) abort();
    }
    for (size_t i = 0; i < count; i++) ones += bytes[i];
    if (count_ones(bytes, count) != ones) abort();
    for (size_t i = 0; i < 256; i++)
        if (pack_byte(unpack_byte((uint8_t)i)) != i) abort();
    free(bytes);
    free(bits);
    free(before);
}

/* Of a chunk; with another conversion, of other numbers or decimals of the same bytes, as far as there is one. */
static Layout layout_of(int64_t *fields) {
    static const int widths[] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 16};
    int64_t conversion = fields[CONVERSION];
    Layout layout = {(int)fields[1], (int)fields[2], fields[3] != 0, conversion & 255, conversion >> 8 & 255,
                     conversion >> 16 & 255, conversion >> 24 & 255};
    for (int tries = below(2) ? 8 : 0; tries > 0; tries--) {
        Layout other = {layout.stored, 0, layout.is_integer, (int)below(13), 1 + (int)below(11), (int)below(40), (int)below(3)};
        other.width = widths[other.to];
        if (!is_layout(other)) continue;
        fields[2] = other.width;
        return other;
    }
    return layout;
}

/* Decodes plain and split numbers of random widths; ends the process if a byte is another one. */
static void check_widths(void) {
    size_t count = below(100), width = (size_t)1 << below(4), stored = width;
    if (stored < 4) stored = below(2) ? 4 : 8;
    uint8_t *in = malloc(count * stored + 1), *out = malloc(count * width + 1);
    for (size_t i = 0; i < count * stored; i++) in[i] = (uint8_t)next_number();
    Layout layout = {.stored = (int)stored, .width = (int)width, .is_integer = true};
    for (int is_split = 0; is_split < 2; is_split++) {
        Bytes bytes = {in, in + count * stored};
        if (decode_values(is_split ? BYTE_STREAM_SPLIT : PLAIN, bytes, count, layout, NULL, NULL, out) != DECODED) abort();
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < width; k++)
                if (out[i * width + k] != in[is_split ? k * count + i : i * stored + k]) abort();
    }
    free(in);
    free(out);
}

/* Joins or gathers runs of columns of random widths, of up to 3 parts; ends the process if a row is not the one it should be. */
static void check_gather(void) {
    enum { RUNS = 3, PARTS = 3 };
    size_t num_parts = 1 + below(PARTS), total = 0;
    bool is_ordered = below(4) != 0;
    int64_t part_rows[PARTS];
    for (size_t i = 0; i < num_parts; i++) total += (size_t)(part_rows[i] = (int64_t)below(20));
    size_t count = is_ordered ? below(200) : total;
    int64_t *order = malloc((count + 1) * sizeof *order);
    uint32_t *shorter = malloc(count * sizeof *shorter + 1);
    for (size_t i = 0; i < count; i++)
        order[i] = !is_ordered ? (int64_t)i : total == 0 || !below(500) ? -1 : (int64_t)below(total);
    Side parts[RUNS * PARTS];
    Run runs[RUNS];
    for (size_t run = 0; run < RUNS; run++) {
        int64_t width = 1 << below(4), columns = (int64_t)below(4);
        for (size_t i = 0; i < num_parts; i++) {
            int64_t pitch = (part_rows[i] + (int64_t)below(3)) * width;
            uint8_t *part = malloc((size_t)(columns * pitch) + 1);
            for (int64_t at = 0; at < columns * pitch; at++) part[at] = (uint8_t)next_number();
            parts[run * num_parts + i] = (Side){(uint64_t)(uintptr_t)part, pitch};
        }
        int64_t pitch = ((int64_t)count + (int64_t)below(3)) * width;
        runs[run] = (Run){{(uint64_t)(uintptr_t)malloc((size_t)(columns * pitch) + 1), pitch}, columns, width};
    }
    uint8_t *joined = num_parts > 1 || below(2) ? malloc(total * 8 + 1) : NULL;
    Columns columns = {RUNS, num_parts, part_rows, parts, runs};
    bool is_there = short_order(order, count, total, shorter);
    if (is_there && is_ordered) gather_columns(&columns, shorter, count, joined);
    if (!is_ordered) join_columns(&columns);
    for (size_t run = 0; run < RUNS && is_there; run++)
        for (int64_t column = 0; column < runs[run].count; column++)
            for (size_t i = 0; i < count; i++) {
                size_t width = (size_t)runs[run].width, row = (size_t)order[i], part = 0, start = 0;
                for (; row >= start + (size_t)part_rows[part]; part++) start += (size_t)part_rows[part];
                Side from = parts[run * num_parts + part], to = runs[run].out;
                if (memcmp((const uint8_t *)(uintptr_t)to.address + column * to.pitch + (int64_t)(i * width),
                           (const uint8_t *)(uintptr_t)from.address + column * from.pitch + (int64_t)((row - start) * width),
                           width) != 0)
                    abort();
            }
    for (size_t i = 0; i < RUNS * num_parts; i++) free((void *)(uintptr_t)parts[i].address);
    for (size_t i = 0; i < RUNS; i++) free((void *)(uintptr_t)runs[i].out.address);
    free(joined);
    free(shorter);
    free(order);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL) return 2;
    state = strtoull(arguments[3], NULL, 10);
    size_t num_seeds = 0, room = 0;
    Seed *seeds = NULL, seed;
    while (fread(seed.fields, sizeof seed.fields, 1, file) == 1) {
        size_t length = (size_t)seed.fields[LENGTH];
        seed.pages = malloc(length + 1);
        if (fread(seed.pages, 1, length, file) != length) return 2;
        if (num_seeds == room) seeds = realloc(seeds, (room = 2 * room + 16) * sizeof *seeds);
        seeds[num_seeds++] = seed;
    }
    fclose(file);
    if (num_seeds == 0) return 2;
    time_t end = time(NULL) + strtoll(arguments[2], NULL, 10);
    uint64_t runs = 0, decoded = 0, pages = 0;
    while (runs % 256 != 0 || time(NULL) < end) {
        const Seed *from = &seeds[below(num_seeds)];
        int64_t fields[FIELDS];
        memcpy(fields, from->fields, sizeof fields);
        size_t length = (size_t)fields[LENGTH];
        uint8_t *copy = malloc(length + 1);
        memcpy(copy, from->pages, length);
        if (below(8)) length = mutate(copy, length, &seeds[below(num_seeds)]);
        runs++;
        if (!below(64)) check_order();
        if (!below(64)) check_checksum();
        if (!below(64)) check_gather();
        if (!below(64)) check_bits();
        if (!below(64)) check_widths();
        if (fields[0] == FOOTER) {
            uint8_t *exact = malloc(length == 0 ? 1 : length);
            memcpy(exact, copy, length);
            Bytes footer = {exact, exact + length};
            decoded += check_footer(footer).fault == FITS;
            FooterShape shape;
            if (read_footer_shape(footer, &shape) && numbers_of(&shape) <= length) {
                int64_t *numbers = malloc(numbers_of(&shape) * sizeof *numbers + 1);
                decoded += read_footer(footer, &shape, numbers);
                free(numbers);
            }
            free(exact);
            free(copy);
            continue;
        }
        if (fields[0] == LINES) {
            static uint64_t slots[256];
            if (!below(16)) memset(slots, 0, sizeof slots);
            uint8_t *exact = malloc(length == 0 ? 1 : length);
            memcpy(exact, copy, length);
            News news = {NULL, 0, 0};
            if (!find_news((Bytes){exact, exact + length}, (Seen){slots, 255, next_number()}, 1 + below(8), &news)) abort();
            for (size_t i = 0; i < news.count; i++) {
                if (news.lines[i].start > news.lines[i].stop || (size_t)news.lines[i].stop > length) abort();
                decoded += news.lines[i].is_understood;
            }
            free(news.lines);
            free(exact);
            free(copy);
            continue;
        }
        if (!below(8)) fields[0] = (int64_t)below(8);
        if (!below(8)) fields[4] = (int64_t)below(fields[10] ? 2 : 4);
        if (!below(8)) fields[5] = (int64_t)below((size_t)fields[5] * 2 + 2);
        if (!below(4)) fields[6] = (int64_t)below((size_t)fields[5] + 1);
        if (fields[6] > fields[5]) fields[6] = fields[5];
        if (!below(4) || fields[7] > fields[5] - fields[6]) fields[7] = (int64_t)below((size_t)(fields[5] - fields[6]) + 1);
        if (!below(16)) fields[10] = (int64_t)below(3);
        Layout layout = layout_of(fields);
        size_t rows = (size_t)fields[7], width = (size_t)fields[2], room = fields[10] ? (size_t)fields[5] : rows;
        size_t first_bit = fields[10] ? 0 : below(2) * below(64), bits = (first_bit + room + 7) / 8;
        uint8_t *exact = malloc(length == 0 ? 1 : length), *validity = malloc(bits);
        memcpy(exact, copy, length);
        uint8_t *values = malloc(fields[1] == 0 ? bits : room * width);
        int32_t *offsets = fields[10] ? malloc((rows + 1) * sizeof *offsets) : NULL;
        uint8_t *list_validity = malloc((rows + 7) / 8);
        Chunk chunk = {.pages = {exact, exact + length}, .codec = (int)fields[0],
                       .layout = layout, .is_optional = fields[4] != 0,
                       .levels = (int)fields[4],
                       .num_values = fields[5], .first = fields[6], .count = fields[7],
                       .most_page_bytes = (size_t)fields[8], .checks_pages = fields[9] != 0, .values = values,
                       .validity = validity, .first_bit = (int64_t)first_bit, .room = (int64_t)room,
                       .lists = {.offsets = offsets, .validity = list_validity, .is_optional = fields[10] == 2}};
        Work work;
        memset(&work, 0, sizeof work);
        bool is_decoded = decode_chunk(&chunk, &work) == DECODED;
        if (is_decoded && offsets != NULL) {
            if (offsets[0] != 0 || (size_t)offsets[rows] > room) abort();
            for (size_t i = 0; i < rows; i++)
                if (offsets[i] > offsets[i + 1]) abort();
        }
        decoded += is_decoded;
        pages += (uint64_t)chunk.pages_decoded;
        free_work(&work);
        free(exact);
        free(validity);
        free(values);
        free(offsets);
        free(list_validity);
        free(copy);
    }
    for (size_t i = 0; i < num_seeds; i++) free(seeds[i].pages);
    free(seeds);
    printf("%llu runs, %llu decoded, %llu pages\n", (unsigned long long)runs, (unsigned long long)decoded,
           (unsigned long long)pages);
    return 0;
}
