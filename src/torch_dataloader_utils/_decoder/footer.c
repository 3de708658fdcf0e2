/* The numbers of all column chunks of a footer, by one pass over it.
 *
 * pyarrow gives them too, one Python object and microseconds a chunk, and ends the process at a codec without a name.
 *
 * Source: parquet-format, "parquet.thrift" (FileMetaData, RowGroup, ColumnChunk, ColumnMetaData).
 */
#include "thrift.h"

static bool read_metadata(Bytes *in, int64_t *numbers) {
    for (int i = 0; i < CHUNK_NUMBERS; i++) numbers[i] = -1;
    int64_t *fields[12] = {0};
    fields[4] = &numbers[CHUNK_CODEC];
    fields[5] = &numbers[CHUNK_VALUES];
    fields[6] = &numbers[CHUNK_UNCOMPRESSED];
    fields[7] = &numbers[CHUNK_COMPRESSED];
    fields[9] = &numbers[CHUNK_DATA];
    fields[11] = &numbers[CHUNK_DICTIONARY];
    return read_numbers(in, fields, 12, NULL, 0);
}

/* A chunk in another file, or encrypted, is not understood. */
static bool read_chunk(Bytes *in, int64_t *numbers) {
    enum { FILE_PATH = 1, METADATA = 3, CRYPTO = 8, ENCRYPTED = 9 };
    int64_t number = 0;
    int type;
    bool has_metadata = false;
    while (read_field(in, &number, &type)) {
        if (type == 0) return has_metadata;
        if (number == FILE_PATH || number == CRYPTO || number == ENCRYPTED) return false;
        if (number == METADATA && type == STRUCT) {
            if (has_metadata || !read_metadata(in, numbers)) return false;
            has_metadata = true;
        } else if (!pass_value(in, type, 1, false)) {
            return false;
        }
    }
    return false;
}

static bool read_group(Bytes *in, uint64_t num_leaves, int64_t *numbers) {
    enum { COLUMNS = 1 };
    int64_t number = 0;
    int type, of;
    bool has_columns = false;
    while (read_field(in, &number, &type)) {
        if (type == 0) return has_columns;
        if (number == COLUMNS && type == LIST) {
            uint64_t count;
            if (has_columns || !read_list(in, &count, &of) || count != num_leaves || of != STRUCT) return false;
            for (uint64_t leaf = 0; leaf < count; leaf++)
                if (!read_chunk(in, numbers + leaf * CHUNK_NUMBERS)) return false;
            has_columns = true;
        } else if (!pass_value(in, type, 1, false)) {
            return false;
        }
    }
    return false;
}

bool read_footer(Bytes footer, uint64_t num_groups, uint64_t num_leaves, int64_t *numbers) {
    enum { ROW_GROUPS = 4 };
    int64_t number = 0;
    int type, of;
    bool has_groups = false;
    while (read_field(&footer, &number, &type)) {
        if (type == 0) return has_groups;
        if (number == ROW_GROUPS && type == LIST) {
            uint64_t count;
            if (has_groups || !read_list(&footer, &count, &of) || count != num_groups || of != STRUCT) return false;
            for (uint64_t group = 0; group < count; group++)
                if (!read_group(&footer, num_leaves, numbers + group * num_leaves * CHUNK_NUMBERS)) return false;
            has_groups = true;
        } else if (!pass_value(&footer, type, 1, false)) {
            return false;
        }
    }
    return false;
}
