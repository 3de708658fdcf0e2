/* Structs of the Thrift compact protocol: a reader that goes through them once, and never beyond their bytes.
 *
 * Source: thrift, "Thrift Compact protocol".
 */
#ifndef THRIFT_H
#define THRIFT_H

#include "engine.h"

enum { TRUE_FIELD = 1, FALSE_FIELD = 2, BYTE = 3, I16 = 4, I32 = 5, I64 = 6, DOUBLE = 7, BINARY = 8, LIST = 9, SET = 10,
       MAP = 11, STRUCT = 12 };

bool read_number(Bytes *in, int64_t *value);

/* The next field of a struct: adds to its number, and gives its type; type 0 at the end. */
bool read_field(Bytes *in, int64_t *number, int *type);

/* The head of a list: how many there are, each takes at least a byte, and their type. */
bool read_list(Bytes *in, uint64_t *count, int *type);

/* Goes to the end of a value. */
bool pass_value(Bytes *in, int type, int depth, bool in_list);

enum { MOST_FIELD = 16 };

/* The fields of a struct: their types (0: any), which of them must be there, and where numbers go (NULL: nowhere). */
typedef struct {
    uint8_t types[MOST_FIELD + 1];
    uint32_t required;
    int64_t *numbers[MOST_FIELD + 1];
} Fields;

/* Reads fields until one that is a list, if `stops` has its bit: its head is next then; else until the end, *number = 0.
 * `seen`: the bits of the fields so far. A field comes once. */
bool read_fields(Bytes *in, const Fields *fields, uint32_t stops, uint32_t *seen, int64_t *number);

/* Reads a struct whose number fields (I32 or I64) go to `fields[number]`, if that is no NULL; passes over all others. */
bool read_numbers(Bytes *in, int64_t **fields, int64_t num_fields, bool *flag, int64_t flag_number);

#endif
