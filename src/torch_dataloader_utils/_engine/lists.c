/* Lists: levels of a page to offsets, bitmaps and items.
 *
 *     rows           [7, 8]   []   null   [9, null]
 *     repetition      0  1    0    0       0  1        0 begins a row
 *     definition      3  3    1    0       3  2        of optional lists of optional items; one less for each that is not
 *     items           7  8                 9  null
 *     offsets         0       2    2       2           4
 *
 * A row may go on in the next page. Where every level stands for an item, which is nearly always so, runs of equal
 * repetition levels are passed over at once.
 *
 * Source: Dremel, "Nested columnar storage"; parquet-format, "Nested Encoding".
 */
#include "engine.h"

#include <string.h>

/* A row begins before item `item` of the page; `is_null`: it is a null list. */
static inline void begin_row(Chunk *chunk, Items *items, size_t item, bool is_null) {
    Lists *lists = &chunk->lists;
    int64_t row = lists->rows++ - chunk->first;
    if (row < 0 || row > chunk->count) return;
    if (row == 0) items->first = item;
    if (row == chunk->count) {
        items->last = item;
        return;
    }
    lists->offsets[row] = (int32_t)(items->place + (int64_t)(item - items->first));
    if (!is_null) return;
    if (lists->nulls++ == 0) memset(lists->validity, 255, (size_t)(chunk->count + 7) / 8);
    lists->validity[row / 8] &= (uint8_t)~(1 << row % 8);
}

/* Rows of a page in which every level stands for an item. */
static Reason begin_rows(Chunk *chunk, Bytes repetitions, size_t count, Items *items) {
    Runs runs = {.in = repetitions, .bits = 1};
    for (size_t at = 0; at < count;) {
        if (!next_run(&runs)) return DAMAGED;
        size_t wanted = runs.count < count - at ? (size_t)runs.count : count - at;
        if (!runs.is_packed) {
            if (runs.repeated > 1) return DAMAGED;
            if (runs.repeated == 1 && wanted > 0 && chunk->lists.rows == 0) return DAMAGED;
            for (size_t i = 0; runs.repeated == 0 && i < wanted; i++) begin_row(chunk, items, at + i, false);
        } else {
            for (size_t from = 0; from < wanted; from += 64) {
                size_t some = wanted - from < 64 ? wanted - from : 64;
                uint64_t word = 0;
                if (some == 64)
                    memcpy(&word, runs.packed + from / 8, 8);
                else
                    memcpy(&word, runs.packed + from / 8, (some + 7) / 8);
                uint64_t begins = ~word & (UINT64_MAX >> (64 - some));
                if (chunk->lists.rows == 0 && !(begins & 1)) return DAMAGED;
                for (; begins != 0; begins &= begins - 1)
                    begin_row(chunk, items, at + from + (size_t)__builtin_ctzll(begins), false);
            }
        }
        at += wanted;
    }
    return DECODED;
}

/* Rows of a page that has empty or null lists too. */
static Reason begin_any_rows(Chunk *chunk, const uint8_t *repetitions, const uint8_t *definitions, size_t count,
                             Items *items) {
    int item_level = 1 + chunk->lists.is_optional;
    size_t item = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_item = definitions[i] >= item_level;
        if (repetitions[i] == 0)
            begin_row(chunk, items, item, chunk->lists.is_optional && definitions[i] == 0);
        else if (!is_item || chunk->lists.rows == 0)
            return DAMAGED; /* what goes on is a list that has items */
        item += is_item;
    }
    return DECODED;
}

Reason read_lists(Chunk *chunk, Bytes repetitions, Bytes definitions, size_t count, int64_t num_rows, Work *work,
                  Items *items) {
    Lists *lists = &chunk->lists;
    int item_level = 1 + lists->is_optional, most = item_level + chunk->is_optional;
    bool are_most;
    uint8_t *levels = scratch_of(&work->definitions, count);
    if (levels == NULL) return NO_MEMORY;
    Reason reason = decode_levels(definitions, count, most, levels, &are_most);
    if (reason != DECODED) return reason;
    *items = (Items){.count = count, .num_values = count, .place = lists->items};
    if (!are_most) {
        items->count = items->num_values = 0;
        for (size_t i = 0; i < count; i++) items->count += levels[i] >= item_level;
        for (size_t i = 0; i < count; i++) items->num_values += levels[i] == most;
    }
    items->first = lists->rows > chunk->first ? 0 : items->count; /* until a wanted row begins */
    items->last = items->count;
    int64_t before = lists->rows;
    if (items->count == count) {
        reason = begin_rows(chunk, repetitions, count, items);
    } else {
        uint8_t *repeated = scratch_of(&work->repetitions, count);
        bool are_all;
        if (repeated == NULL) return NO_MEMORY;
        reason = decode_levels(repetitions, count, 1, repeated, &are_all);
        if (reason == DECODED && are_all) return DAMAGED; /* an empty list that goes on */
        if (reason == DECODED) reason = begin_any_rows(chunk, repeated, levels, count, items);
    }
    if (reason != DECODED) return reason;
    if (num_rows != -1 && lists->rows - before != num_rows) return DAMAGED;
    if (items->num_values < items->count) {
        uint8_t *present = scratch_of(&work->present, count);
        if (present == NULL) return NO_MEMORY;
        for (size_t i = 0, item = 0; i < count; i++) {
            present[item] = levels[i] == most;
            item += levels[i] >= item_level;
        }
        items->present = present;
    }
    lists->items += (int64_t)(items->last - items->first);
    return DECODED;
}
