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

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>

static inline void stream_line(uint8_t *to, const uint8_t *line) {
    for (int i = 0; i < LINE_BYTES; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(line + i)));
}

void end_streams(void) { _mm_sfence(); }
#else
static inline void stream_line(uint8_t *to, const uint8_t *line) { memcpy(to, line, LINE_BYTES); }

void end_streams(void) {}
#endif

#define STREAM(TYPE)                                                                        \
    {                                                                                       \
        enum { IN_LINE = LINE_BYTES / sizeof(TYPE) };                                       \
        const TYPE *from = (const TYPE *)column;                                            \
        for (; done + IN_LINE <= count; done += IN_LINE) {                                  \
            TYPE line[IN_LINE];                                                             \
            for (size_t i = 0; i < IN_LINE; i++) line[i] = from[order[done + i]];           \
            stream_line(out + done * sizeof(TYPE), (const uint8_t *)line);                  \
        }                                                                                   \
        break;                                                                              \
    }

void stream_rows(const uint8_t *column, size_t width, const uint32_t *order, size_t count, uint8_t *out) {
    size_t before_line = (size_t)(-(uintptr_t)out % LINE_BYTES) / width, done = before_line < count ? before_line : count;
    take_rows(column, width, order, done, out);
    if ((uintptr_t)(out + done * width) % LINE_BYTES == 0) switch (width) {
            case 1: STREAM(uint8_t)
            case 2: STREAM(uint16_t)
            case 4: STREAM(uint32_t)
            case 8: STREAM(uint64_t)
        }
    take_rows(column, width, order + done, count - done, out + done * width);
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
    size_t bytes = 0;
    for (size_t i = 0; i < columns->count; i++)
        bytes += (size_t)(columns->runs[i].count * columns->runs[i].width) * count;
    for (size_t i = 0; i < columns->count; i++) {
        const Run *run = &columns->runs[i];
        const Side *only = columns->parts + i * columns->num_parts;
        for (int64_t column = 0; column < run->count; column++) {
            const uint8_t *from = joined;
            if (joined != NULL)
                join_parts(columns, i, column, joined);
            else
                from = (const uint8_t *)(uintptr_t)only->address + column * only->pitch;
            (bytes < LEAST_STREAMED_BYTES ? take_rows : stream_rows)(from, (size_t)run->width, order, count, out_of(run, column));
        }
    }
    end_streams();
}
