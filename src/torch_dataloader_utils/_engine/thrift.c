/* Structs of the Thrift compact protocol, as far as page headers and footers need them. */
#include "thrift.h"

enum { MOST_DEPTH = 16 };

bool read_number(Bytes *in, int64_t *value) {
    uint64_t raw;
    if (!read_varint(in, &raw)) return false;
    *value = (int64_t)(raw >> 1 ^ (~(raw & 1) + 1));
    return true;
}

bool read_field(Bytes *in, int64_t *number, int *type) {
    if (in->at == in->end) return false;
    uint8_t byte = *in->at++;
    *type = byte & 15;
    if (*type == 0) return true;
    if (byte >> 4) {
        *number += byte >> 4;
        return true;
    }
    return read_number(in, number) && *number >= 0 && *number < 1 << 15;
}

static bool pass_bytes(Bytes *in, uint64_t count) {
    if (count > left_of(*in)) return false;
    in->at += count;
    return true;
}

bool read_list(Bytes *in, uint64_t *count, int *type) {
    if (in->at == in->end) return false;
    uint8_t byte = *in->at++;
    *type = byte & 15;
    *count = byte >> 4;
    return (*count < 15 || read_varint(in, count)) && *count <= left_of(*in);
}

static bool pass_struct(Bytes *in, int depth);

bool pass_value(Bytes *in, int type, int depth, bool in_list) {
    uint64_t count;
    int64_t number;
    if (depth > MOST_DEPTH) return false;
    switch (type) {
        case TRUE_FIELD:
        case FALSE_FIELD: return !in_list || pass_bytes(in, 1);
        case BYTE: return pass_bytes(in, 1);
        case I16:
        case I32:
        case I64: return read_number(in, &number);
        case DOUBLE: return pass_bytes(in, 8);
        case BINARY: return read_varint(in, &count) && pass_bytes(in, count);
        case LIST:
        case SET: {
            int of;
            if (!read_list(in, &count, &of)) return false;
            for (; count > 0; count--)
                if (in->at == in->end || !pass_value(in, of, depth + 1, true)) return false;
            return true;
        }
        case STRUCT: return pass_struct(in, depth + 1);
        default: return false; /* maps: neither headers nor footers have any */
    }
}

static bool pass_struct(Bytes *in, int depth) {
    int64_t number = 0;
    int type;
    while (read_field(in, &number, &type)) {
        if (type == 0) return true;
        if (!pass_value(in, type, depth, false)) return false;
    }
    return false;
}

bool read_fields(Bytes *in, const Fields *fields, uint32_t stops, uint32_t *seen, int64_t *number) {
    int type;
    while (read_field(in, number, &type)) {
        if (type == 0) {
            *number = 0;
            return (*seen & fields->required) == fields->required;
        }
        if (*number <= 0 || *number > MOST_FIELD) {
            if (!pass_value(in, type, 1, false)) return false;
            continue;
        }
        uint32_t bit = UINT32_C(1) << *number;
        uint8_t wanted = fields->types[*number];
        if (*seen & bit || (wanted != 0 && wanted != type)) return false;
        *seen |= bit;
        if (stops & bit) return true;
        if (!(fields->numbers[*number] != NULL ? read_number(in, fields->numbers[*number]) : pass_value(in, type, 1, false)))
            return false;
    }
    return false;
}

bool read_numbers(Bytes *in, int64_t **fields, int64_t num_fields, bool *flag, int64_t flag_number) {
    int64_t number = 0;
    int type;
    while (read_field(in, &number, &type)) {
        if (type == 0) return true;
        int64_t *field = number < num_fields ? fields[number] : NULL;
        if (field != NULL && (type == I32 || type == I64)) {
            if (!read_number(in, field)) return false;
        } else if (flag != NULL && number == flag_number && (type == TRUE_FIELD || type == FALSE_FIELD)) {
            *flag = type == TRUE_FIELD;
        } else if (!pass_value(in, type, 1, false)) {
            return false;
        }
    }
    return false;
}

