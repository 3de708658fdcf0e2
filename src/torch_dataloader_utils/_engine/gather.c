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
        default: TAKE(uint64_t)
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

void gather_columns(const Columns *columns, const uint32_t *order, size_t count, uint8_t *joined) {
    for (size_t column = 0; column < columns->count; column++) {
        const uint64_t *parts = columns->parts + column * columns->num_parts;
        size_t width = (size_t)columns->widths[column];
        const uint8_t *from = joined == NULL ? (const uint8_t *)(uintptr_t)parts[0] : joined;
        uint8_t *end = joined;
        for (size_t i = 0; i < columns->num_parts && joined != NULL; i++) {
            size_t bytes = (size_t)columns->part_rows[i] * width;
            if (bytes > 0) memcpy(end, (const void *)(uintptr_t)parts[i], bytes);
            end += bytes;
        }
        take_rows(from, width, order, count, (uint8_t *)(uintptr_t)columns->outs[column]);
    }
}
