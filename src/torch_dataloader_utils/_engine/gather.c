/* Rows of columns in another order. */
#include "engine.h"

#include <string.h>

#define TAKE(TYPE)                                                            \
    {                                                                         \
        const TYPE *from = (const TYPE *)column;                              \
        TYPE *to = (TYPE *)out;                                               \
        for (size_t i = 0; i < count; i++) to[i] = from[order[i]];            \
        break;                                                                \
    }

void take_rows(const uint8_t *column, size_t width, const uint32_t *order, size_t count, uint8_t *out) {
    switch (width) {
        case 1: TAKE(uint8_t)
        case 2: TAKE(uint16_t)
        case 4: TAKE(uint32_t)
        case 8: TAKE(uint64_t)
        default: TAKE(Word16)
    }
}

bool short_order(const int64_t *order, size_t count, uint64_t rows, uint32_t *shorter) {
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++) {
        all |= (uint64_t)order[i] >= rows;
        shorter[i] = (uint32_t)order[i];
    }
    return !all;
}

/* A column of a run, all parts one after the other. */
static void join_parts(const Columns *columns, size_t run, int64_t column, uint8_t *to) {
    const Side *parts = columns->parts + run * columns->num_parts;
    for (size_t i = 0; i < columns->num_parts; i++) {
        size_t bytes = (size_t)columns->part_rows[i] * (size_t)columns->runs[run].width;
        if (bytes > 0) memcpy(to, (const uint8_t *)(uintptr_t)parts[i].address + column * parts[i].pitch, bytes);
        to += bytes;
    }
}

static uint8_t *out_of(const Run *run, int64_t column) {
    return (uint8_t *)(uintptr_t)run->out.address + column * run->out.pitch;
}

void join_columns(const Columns *columns) {
    for (size_t run = 0; run < columns->count; run++)
        for (int64_t column = 0; column < columns->runs[run].count; column++)
            join_parts(columns, run, column, out_of(&columns->runs[run], column));
}

void gather_columns(const Columns *columns, const uint32_t *order, size_t count, uint8_t *joined) {
    for (size_t i = 0; i < columns->count; i++) {
        const Run *run = &columns->runs[i];
        const Side *only = columns->parts + i * columns->num_parts;
        for (int64_t column = 0; column < run->count; column++) {
            const uint8_t *from = joined;
            if (joined != NULL)
                join_parts(columns, i, column, joined);
            else
                from = (const uint8_t *)(uintptr_t)only->address + column * only->pitch;
            take_rows(from, (size_t)run->width, order, count, out_of(run, column));
        }
    }
}
