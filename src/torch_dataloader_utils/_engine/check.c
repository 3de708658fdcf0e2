/* Whether a footer fits itself: its schema is a tree, and row groups and chunks are as the schema has them.
 *
 * pyarrow looks at parts of it only when they are asked for, and ends the process where they do not fit.
 *
 * Source: parquet-format, "parquet.thrift" (SchemaElement, ColumnChunk, ColumnMetaData, Statistics, SizeStatistics).
 */
#include <stdlib.h>
#include <string.h>

#include "thrift.h"

enum { REQUIRED = 0, OPTIONAL = 1, REPEATED = 2 };
enum { BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE_TYPE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, NUM_TYPES };

/* A leaf column: its physical type, the bytes of a value if that is FIXED_LEN_BYTE_ARRAY, and its highest levels. */
typedef struct {
    int64_t type, length;
    int repetitions, definitions;
} Leaf;

typedef struct {
    Leaf *leaves;
    size_t count;
    FooterVerdict *verdict;
} Schema;

static bool fails(const Schema *schema, FooterFault fault) {
    schema->verdict->fault = fault;
    return false;
}

/* A node inside of which children are still to come: how many, and the levels of the node. */
typedef struct {
    int64_t missing;
    int repetitions, definitions;
} Node;

typedef struct {
    int64_t type, length, repetition, children;
} Element;

static bool read_element(Bytes *in, Element *element) {
    enum { NAME = 4 };
    *element = (Element){-1, 0, -1, 0};
    Fields fields = {.types = {[1] = I32, [2] = I32, [3] = I32, [NAME] = BINARY, [5] = I32},
                     .required = 1 << NAME,
                     .numbers = {[1] = &element->type, [2] = &element->length, [3] = &element->repetition,
                                 [5] = &element->children}};
    uint32_t seen = 0;
    int64_t number = 0;
    return read_fields(in, &fields, 0, &seen, &number);
}

/* Adds the element below the last node that lacks children. */
static bool add_element(Schema *schema, Node *nodes, int *depth, const Element *element) {
    while (*depth >= 0 && nodes[*depth].missing == 0) (*depth)--;
    if (*depth < 0 || element->repetition < REQUIRED || element->repetition > REPEATED || element->children < 0)
        return fails(schema, NO_TREE);
    Node *above = &nodes[*depth];
    above->missing--;
    int repetitions = above->repetitions + (element->repetition == REPEATED);
    int definitions = above->definitions + (element->repetition != REQUIRED);
    if (element->children == 0 && element->type != -1) {
        if (element->type < 0 || element->type >= NUM_TYPES) return fails(schema, NO_TREE);
        schema->leaves[schema->count++] = (Leaf){element->type, element->length, repetitions, definitions};
        return true;
    }
    if (++*depth == MOST_SCHEMA_DEPTH) return fails(schema, TOO_DEEP);
    nodes[*depth] = (Node){element->children, repetitions, definitions};
    return true;
}

static bool read_schema(Bytes *in, Schema *schema) {
    uint64_t count;
    int of, depth = 0;
    Element element;
    Node nodes[MOST_SCHEMA_DEPTH];
    if (schema->leaves != NULL || !read_list(in, &count, &of) || of != STRUCT || count == 0 || count > left_of(*in) / 3)
        return false;
    schema->leaves = malloc(count * sizeof(Leaf));
    if (schema->leaves == NULL || !read_element(in, &element)) return false;
    if (element.children < 0) return fails(schema, NO_TREE);
    nodes[0] = (Node){element.children, 0, 0};
    for (; count > 1; count--)
        if (!read_element(in, &element) || !add_element(schema, nodes, &depth, &element)) return false;
    for (; depth >= 0; depth--)
        if (nodes[depth].missing > 0) return fails(schema, NO_TREE);
    return true;
}

/* The bounds in statistics: whether they have the bytes of a value, and are not both called inexact and equal. */
static bool read_statistics(Bytes *in, const Leaf *leaf, FooterVerdict *verdict) {
    enum { OLD_MAX = 1, OLD_MIN = 2, MAX = 5, MIN = 6, IS_MAX_EXACT = 7, IS_MIN_EXACT = 8 };
    static const size_t sizes[NUM_TYPES] = {1, 4, 8, 12, 4, 8, 0, 0};
    size_t size = leaf->type == FIXED_LEN_BYTE_ARRAY ? (size_t)leaf->length : sizes[leaf->type];
    Bytes bounds[MIN + 1] = {{NULL, NULL}};
    bool are_exact = true;
    int64_t number = 0;
    int type;
    while (read_field(in, &number, &type)) {
        if (type == 0) {
            bool are_same = bounds[MIN].at != NULL && bounds[MAX].at != NULL && left_of(bounds[MIN]) == left_of(bounds[MAX]) &&
                            memcmp(bounds[MIN].at, bounds[MAX].at, left_of(bounds[MIN])) == 0;
            if (are_same && !are_exact) verdict->has_sound_bounds = false;
            return true;
        }
        const uint8_t *start = in->at;
        if (!pass_value(in, type, 1, false)) return false;
        if ((number == IS_MAX_EXACT || number == IS_MIN_EXACT) && type == FALSE_FIELD) are_exact = false;
        if (type != BINARY || (number != OLD_MAX && number != OLD_MIN && number != MAX && number != MIN)) continue;
        uint64_t length;
        Bytes value = {start, in->at};
        if (!read_varint(&value, &length)) return false;
        bounds[number] = value;
        if (leaf->type != BYTE_ARRAY && length != size) verdict->has_sound_bounds = false;
    }
    return false;
}

/* The levels that size statistics count, and of which type they may count bytes. */
static bool read_size_statistics(Bytes *in, const Leaf *leaf, const Schema *schema) {
    enum { TEXT_BYTES = 1, REPETITIONS = 2, DEFINITIONS = 3 };
    Fields fields = {.types = {[TEXT_BYTES] = I64, [REPETITIONS] = LIST, [DEFINITIONS] = LIST}};
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(in, &fields, 1 << REPETITIONS | 1 << DEFINITIONS, &seen, &number)) {
        if (number == 0) return !(seen & 1 << TEXT_BYTES) || leaf->type == BYTE_ARRAY || fails(schema, OTHER_LEVELS);
        uint64_t count;
        int of;
        if (!read_list(in, &count, &of)) return false;
        int most = number == REPETITIONS ? leaf->repetitions : leaf->definitions;
        if (count != 0 && count != (uint64_t)most + 1) return fails(schema, OTHER_LEVELS);
        for (; count > 0; count--)
            if (!pass_value(in, of, 1, true)) return false;
    }
    return false;
}

static bool read_metadata(Bytes *in, const Leaf *leaf, const Schema *schema) {
    enum { TYPE = 1, STATISTICS = 12, SIZES = 16 };
    int64_t own_type = -1, number = 0;
    Fields fields = {.types = {[TYPE] = I32, [STATISTICS] = STRUCT, [SIZES] = STRUCT},
                     .required = 1 << TYPE,
                     .numbers = {[TYPE] = &own_type}};
    uint32_t seen = 0;
    while (read_fields(in, &fields, 1 << STATISTICS | 1 << SIZES, &seen, &number)) {
        if (number == 0) return own_type == leaf->type || fails(schema, OTHER_TYPE);
        if (!(number == SIZES ? read_size_statistics(in, leaf, schema) : read_statistics(in, leaf, schema->verdict)))
            return false;
    }
    return false;
}

static bool read_chunk(Bytes *in, const Leaf *leaf, const Schema *schema) {
    enum { METADATA = 3, CRYPTO = 8, ENCRYPTED = 9 };
    Fields fields = {.types = {[METADATA] = STRUCT}, .required = 1 << METADATA};
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(in, &fields, 1 << METADATA | 1 << CRYPTO | 1 << ENCRYPTED, &seen, &number)) {
        if (number == 0) return true;
        if (number != METADATA) return fails(schema, IS_ENCRYPTED);
        if (!read_metadata(in, leaf, schema)) return false;
    }
    return false;
}

static bool read_group(Bytes *in, const Schema *schema) {
    enum { COLUMNS = 1 };
    Fields fields = {.types = {[COLUMNS] = LIST}, .required = 1 << COLUMNS};
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(in, &fields, 1 << COLUMNS, &seen, &number)) {
        if (number == 0) return true;
        uint64_t count;
        int of;
        if (!read_list(in, &count, &of) || (count > 0 && of != STRUCT)) return false;
        if (count != schema->count) return fails(schema, OTHER_CHUNKS);
        for (uint64_t leaf = 0; leaf < count; leaf++) {
            schema->verdict->leaf = (int64_t)leaf;
            if (!read_chunk(in, &schema->leaves[leaf], schema)) return false;
        }
    }
    return false;
}

static bool read_file(Bytes *in, Schema *schema) {
    enum { SCHEMA = 2, ROW_GROUPS = 4 };
    Fields fields = {.types = {[SCHEMA] = LIST, [ROW_GROUPS] = LIST}, .required = 1 << SCHEMA | 1 << ROW_GROUPS};
    uint32_t seen = 0;
    int64_t number = 0;
    while (read_fields(in, &fields, 1 << SCHEMA | 1 << ROW_GROUPS, &seen, &number)) {
        if (number == 0) return true;
        uint64_t count;
        int of;
        if (number == SCHEMA) {
            if (!read_schema(in, schema)) return false;
            continue;
        }
        if (schema->leaves == NULL || !read_list(in, &count, &of) || (count > 0 && of != STRUCT)) return false;
        for (uint64_t group = 0; group < count; group++) {
            schema->verdict->group = (int64_t)group;
            schema->verdict->leaf = -1;
            if (!read_group(in, schema)) return false;
        }
    }
    return false;
}

FooterVerdict check_footer(Bytes footer) {
    FooterVerdict verdict = {NOT_PARSED, -1, -1, true};
    Schema schema = {NULL, 0, &verdict};
    if (read_file(&footer, &schema)) verdict.fault = FITS;
    free(schema.leaves);
    return verdict;
}
