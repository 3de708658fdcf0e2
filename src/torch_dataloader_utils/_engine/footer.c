/* The numbers of all row groups and column chunks of a footer, by a pass over it for its shape and one for the numbers.
 *
 * pyarrow gives them too, one Python object and microseconds a chunk, and ends the process at a codec without a name. What
 * it would refuse (a field that must be there, of the type that it must have) is not understood here.
 *
 * Source: parquet-format, "parquet.thrift" (FileMetaData, RowGroup, ColumnChunk, ColumnMetaData).
 */
#include "thrift.h"

enum { FILE_PATH = 1, METADATA = 3, CRYPTO = 8, ENCRYPTED = 9 };

static bool read_statistics(Bytes *in, int64_t *numbers) {
    enum { NULLS = 3 };
    int64_t *fields[] = {[NULLS] = &numbers[CHUNK_NULLS]};
    return read_numbers(in, fields, NULLS + 1, NULL, 0);
}

static bool read_metadata(Bytes *in, int64_t *numbers) {
    enum { STATISTICS = 12 };
    for (int i = 0; i < CHUNK_NUMBERS; i++) numbers[i] = -1;
    Fields fields = {
        .types = {[1] = I32, [2] = LIST, [3] = LIST, [4] = I32, [5] = I64, [6] = I64, [7] = I64, [9] = I64, [11] = I64,
                  [STATISTICS] = STRUCT},
        .required = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9,
        .numbers = {[4] = &numbers[CHUNK_CODEC], [5] = &numbers[CHUNK_VALUES], [6] = &numbers[CHUNK_UNCOMPRESSED],
                    [7] = &numbers[CHUNK_COMPRESSED], [9] = &numbers[CHUNK_DATA], [11] = &numbers[CHUNK_DICTIONARY]},
    };
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(in, &fields, 1 << STATISTICS, &seen, &number)) {
        if (number == 0) return true;
        if (!read_statistics(in, numbers)) return false;
    }
    return false;
}

/* A chunk in another file, or encrypted, is not understood. */
static bool read_chunk(Bytes *in, int64_t *numbers) {
    int64_t number = 0;
    int type;
    bool has_metadata = false, has_offset = false;
    while (read_field(in, &number, &type)) {
        if (type == 0) return has_metadata && has_offset;
        if (number == FILE_PATH || number == CRYPTO || number == ENCRYPTED) return false;
        if (number == METADATA && type == STRUCT) {
            if (has_metadata || !read_metadata(in, numbers)) return false;
            has_metadata = true;
        } else {
            has_offset = has_offset || (number == 2 && type == I64);
            if (!pass_value(in, type, 1, false)) return false;
        }
    }
    return false;
}

/* `numbers`: NULL to pass over the row group; `leaves` then gets how many chunks it has. */
static bool read_group(Bytes *in, uint64_t *leaves, int64_t *numbers) {
    enum { COLUMNS = 1 };
    int64_t ignored[GROUP_NUMBERS], number = 0;
    int64_t *own = numbers != NULL ? numbers : ignored;
    Fields fields = {.types = {[COLUMNS] = LIST, [2] = I64, [3] = I64},
                     .required = 1 << COLUMNS | 1 << 2 | 1 << 3,
                     .numbers = {[2] = &own[GROUP_BYTES], [3] = &own[GROUP_ROWS]}};
    uint32_t seen = 0;
    while (read_fields(in, &fields, 1 << COLUMNS, &seen, &number)) {
        if (number == 0) return true;
        uint64_t count;
        int of;
        if (!read_list(in, &count, &of) || of != STRUCT || (numbers != NULL && count != *leaves)) return false;
        *leaves = count;
        for (uint64_t leaf = 0; leaf < count; leaf++)
            if (numbers == NULL ? !pass_value(in, STRUCT, 1, false)
                                : !read_chunk(in, numbers + GROUP_NUMBERS + leaf * CHUNK_NUMBERS))
                return false;
    }
    return false;
}

enum { SCHEMA = 2, ROW_GROUPS = 4 };

/* Goes through a footer; `numbers`: NULL to find its shape, all of whose row groups have as many chunks as the first. */
static bool pass_footer(Bytes footer, FooterShape *shape, int64_t *numbers) {
    const uint8_t *start = footer.at;
    Fields fields = {.types = {[1] = I32, [SCHEMA] = LIST, [3] = I64, [ROW_GROUPS] = LIST},
                     .required = 1 << 1 | 1 << SCHEMA | 1 << 3 | 1 << ROW_GROUPS,
                     .numbers = {[3] = &shape->rows}};
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(&footer, &fields, 1 << SCHEMA | 1 << ROW_GROUPS, &seen, &number)) {
        if (number == 0) return footer.at == footer.end; /* else it is signed, or no footer */
        if (number == SCHEMA) {
            if (seen != (1 << 1 | 1 << SCHEMA) || !pass_value(&footer, LIST, 1, false)) return false;
            shape->head_end = (size_t)(footer.at - start);
            continue;
        }
        uint64_t count;
        int of;
        if (seen != (1 << 1 | 1 << SCHEMA | 1 << 3 | 1 << ROW_GROUPS) || !read_list(&footer, &count, &of) || of != STRUCT)
            return false;
        shape->groups = count;
        size_t each = GROUP_NUMBERS + (size_t)shape->leaves * CHUNK_NUMBERS;
        for (uint64_t group = 0; group < count; group++) {
            uint64_t leaves = shape->leaves;
            if (!read_group(&footer, &leaves, numbers == NULL ? NULL : numbers + group * each)) return false;
            if (numbers == NULL && group > 0 && leaves != shape->leaves) return false;
            shape->leaves = leaves;
        }
        shape->tail_start = (size_t)(footer.at - start);
    }
    return false;
}

bool read_footer_shape(Bytes footer, FooterShape *shape) {
    *shape = (FooterShape){0, 0, 0, 0, 0};
    return pass_footer(footer, shape, NULL);
}

bool read_footer(Bytes footer, const FooterShape *shape, int64_t *numbers) {
    FooterShape again = *shape;
    return pass_footer(footer, &again, numbers);
}
