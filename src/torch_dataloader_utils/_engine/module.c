/* The Python functions: check their arguments, and decode without the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine.h"

static const char *const reasons[] = {"", "damaged", "codec", "encoding", "checksum", "too large", "memory", "not read", "type"};
static const char *const faults[] = {
    "",
    "it does not parse",
    "its schema is not a tree of columns",
    "its schema is too deep",
    "it has encrypted columns",
    "a row group has another number of column chunks than there are columns",
    "a column chunk has another type than its column",
    "size statistics count other levels than a column has",
};

/* What `decode` is given of each column, of each row group, and of each chunk; and what it says of each column. */
enum {
    STORED,
    WIDTH,
    IS_INTEGER,
    LEVELS, /* 0: no value, or item of a list, may be null */
    LIST_IS_OPTIONAL,
    VALUES, /* where in `memory` they begin, and so on */
    VALIDITY,
    OFFSETS, /* negative: no lists */
    LIST_VALIDITY,
    CONVERSION, /* from, to, scale and loss, 8 bits each, the lowest first; 0: none */
    COLUMN_NUMBERS
};
enum { FIRST_ROW, NUM_ROWS, ROW_NUMBERS };
enum { CODEC_OF, START, LENGTH, NUM_VALUES, PART_NUMBERS };
enum { NULLS, NULL_LISTS, RESULT_NUMBERS };

static const int64_t most_values = INT64_MAX / 128;

typedef struct {
    Py_buffer pages, memory, columns, chunks, rows, results;
    bool reads_file; /* chunk by chunk; else the pages are in memory */
    int file;
    int64_t *seal;  /* NULL: no checksum is wanted */
    size_t num_columns, num_groups;
    int64_t num_rows;
} Request;

static Layout layout_of(const int64_t *column) {
    uint64_t conversion = (uint64_t)column[CONVERSION];
    return (Layout){(int)column[STORED],   (int)column[WIDTH],     column[IS_INTEGER] != 0, conversion & 255,
                    conversion >> 8 & 255, conversion >> 16 & 255, conversion >> 24 & 255};
}

static bool fits(int64_t start, uint64_t length, Py_ssize_t size) {
    return start >= 0 && start <= size && length <= (uint64_t)(size - start);
}

static uint64_t bytes_of_bits(int64_t bits) { return ((uint64_t)bits + 7) / 8; }

/* Whether a column of `room` values lies in the memory. */
static bool check_column(const Request *request, const int64_t *column, int64_t room) {
    int64_t stored = column[STORED], width = column[WIDTH];
    uintptr_t memory = (uintptr_t)request->memory.buf;
    Py_ssize_t size = request->memory.len;
    if (stored < 0 || stored > 16 || width < 1 || width > 16 || !is_layout(layout_of(column))) return false;
    uint64_t bytes = stored == 0 ? bytes_of_bits(room) : (uint64_t)room * (uint64_t)width;
    if (!fits(column[VALUES], bytes, size) || (memory + (uintptr_t)column[VALUES]) % (uintptr_t)width ||
        !fits(column[VALIDITY], column[LEVELS] ? bytes_of_bits(room) : 0, size) ||
        column[LEVELS] < 0 || column[LEVELS] > (column[OFFSETS] < 0 ? 3 : 1))
        return false;
    if (column[OFFSETS] < 0) return true;
    return request->num_groups == 1 && room <= INT32_MAX && request->num_rows <= INT32_MAX - 1 &&
           fits(column[OFFSETS], ((uint64_t)request->num_rows + 1) * sizeof(int32_t), size) &&
           (memory + (uintptr_t)column[OFFSETS]) % sizeof(int32_t) == 0 &&
           fits(column[LIST_VALIDITY], column[LIST_IS_OPTIONAL] ? bytes_of_bits(request->num_rows) : 0, size);
}

/* Whether all places lie in their buffers, so that no chunk can be decoded from or to anywhere else. */
static bool check(Request *request) {
    size_t size = sizeof(int64_t), num_columns = (size_t)request->columns.len / size / COLUMN_NUMBERS;
    size_t num_groups = (size_t)request->rows.len / size / ROW_NUMBERS;
    const int64_t *columns = request->columns.buf, *rows = request->rows.buf, *parts = request->chunks.buf;
    const Py_buffer *arrays[] = {&request->columns, &request->rows, &request->chunks, &request->results};
    for (size_t i = 0; i < 4; i++)
        if ((uintptr_t)arrays[i]->buf % size) return false;
    if (num_columns == 0 || num_groups == 0 || (size_t)request->results.len / size / RESULT_NUMBERS < num_columns ||
        num_groups > (size_t)request->chunks.len / size / PART_NUMBERS / num_columns)
        return false;
    request->num_columns = num_columns;
    request->num_groups = num_groups;
    request->num_rows = 0;
    const int64_t *part = parts;
    for (size_t group = 0; group < num_groups; group++, rows += ROW_NUMBERS) {
        if (rows[NUM_ROWS] < 0 || rows[NUM_ROWS] > most_values - request->num_rows || rows[FIRST_ROW] < 0) return false;
        request->num_rows += rows[NUM_ROWS];
        for (size_t i = 0; i < num_columns; i++, part += PART_NUMBERS) {
            if (part[NUM_VALUES] < 0 || part[NUM_VALUES] > most_values || rows[FIRST_ROW] > part[NUM_VALUES] ||
                rows[NUM_ROWS] > part[NUM_VALUES] - rows[FIRST_ROW] || part[LENGTH] < 0)
                return false;
            if (part[START] < 0 || part[START] > INT64_MAX - part[LENGTH]) return false;
            if (!request->reads_file && !fits(part[START], (uint64_t)part[LENGTH], request->pages.len)) return false;
        }
    }
    for (size_t i = 0; i < num_columns; i++, columns += COLUMN_NUMBERS) {
        bool is_list = columns[OFFSETS] >= 0;
        if (!check_column(request, columns, is_list ? parts[i * PART_NUMBERS + NUM_VALUES] : request->num_rows))
            return false;
    }
    return true;
}

/* The most that one call asks the system for: of 2 GiB, Linux reads a part, and macOS refuses the call. */
static const int64_t most_read_bytes = 1 << 30;

/* Reads `length` bytes from `start` on, all of them. */
static bool read_pages(int file, int64_t start, int64_t length, uint8_t *pages) {
    for (int64_t have = 0; have < length;) {
        int64_t some = length - have < most_read_bytes ? length - have : most_read_bytes;
        ssize_t more = pread(file, pages + have, (size_t)some, (off_t)(start + have));
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return false;
        have += more;
    }
    return true;
}

#ifdef __APPLE__
#define st_mtim st_mtimespec
#define st_ctim st_ctimespec
#endif

static long long nanoseconds_of(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }

/* Whether an open file has the identity or the pin `planned`, as `FileStat` in _store/interface.py has them. */
static bool is_planned(int file, const char *planned) {
    struct stat now;
    char pin[96];
    if (fstat(file, &now) != 0) return false;
    int length = snprintf(pin, sizeof pin, "%lld-%lld", (long long)now.st_size, nanoseconds_of(now.st_mtim));
    if (strcmp(planned, pin) == 0) return true;
    snprintf(pin + length, sizeof pin - (size_t)length, "@%lld", nanoseconds_of(now.st_ctim));
    return strcmp(planned, pin) == 0;
}

/* The chunk of a column in one row group. Its rows begin at row `begin` of the call. */
static Chunk chunk_of(const Request *request, const uint8_t *pages, const int64_t *column, const int64_t *rows,
                      const int64_t *part, int64_t begin) {
    uint8_t *memory = request->memory.buf;
    bool is_list = column[OFFSETS] >= 0;
    Chunk chunk = {.pages = {pages, pages + part[LENGTH]},
                   .codec = part[CODEC_OF] < 0 || part[CODEC_OF] > INT16_MAX ? -1 : (int)part[CODEC_OF],
                   .layout = layout_of(column),
                   .is_optional = column[LEVELS] != 0,
                   .levels = (int)column[LEVELS],
                   .num_values = part[NUM_VALUES],
                   .first = rows[FIRST_ROW],
                   .count = rows[NUM_ROWS],
                   .room = is_list ? part[NUM_VALUES] : rows[NUM_ROWS],
                   .values = memory + column[VALUES] + (column[STORED] ? begin * column[WIDTH] : 0),
                   .validity = memory + column[VALIDITY],
                   .first_bit = begin};
    if (is_list)
        chunk.lists = (Lists){.offsets = (int32_t *)(memory + column[OFFSETS]),
                              .validity = memory + column[LIST_VALIDITY],
                              .is_optional = column[LIST_IS_OPTIONAL] != 0};
    return chunk;
}

/* Whether there is one row group of a file, and the seal has a checksum and numbers of its columns. */
static bool check_seal(const Request *request, size_t size) {
    if ((uintptr_t)request->seal % sizeof(int64_t) || !request->reads_file || request->num_groups != 1 ||
        size / sizeof(int64_t) != request->num_columns + 1 || request->seal[0] < 0 || request->seal[0] > UINT32_MAX)
        return false;
    for (size_t i = 0; i < request->num_columns; i++)
        if (request->seal[i + 1] < 0 || (uint64_t)request->seal[i + 1] >= request->num_columns) return false;
    return true;
}

/* Decodes chunk after chunk. With several row groups, a refused chunk ends the call. */
static void decode_all(const Request *request, size_t most_page_bytes, bool checks_pages, Reason *reasons) {
    const int64_t *rows = request->rows.buf, *parts = request->chunks.buf;
    int64_t begin = 0, *results = request->results.buf;
    Work work;
    memset(&work, 0, sizeof work);
    memset(results, 0, request->num_columns * RESULT_NUMBERS * sizeof *results);
    bool goes_on = true;
    for (size_t group = 0; group < request->num_groups && goes_on; group++, rows += ROW_NUMBERS, parts += request->num_columns * PART_NUMBERS) {
        for (size_t number = 0; number < request->num_columns && goes_on; number++) {
            size_t i = request->seal == NULL ? number : (size_t)request->seal[number + 1];
            const int64_t *column = (const int64_t *)request->columns.buf + i * COLUMN_NUMBERS;
            const int64_t *part = parts + i * PART_NUMBERS;
            uint8_t *pages = request->reads_file ? scratch_of(&work.chunk, (size_t)part[LENGTH])
                                              : (uint8_t *)request->pages.buf + part[START];
            if (request->reads_file && (pages == NULL || !read_pages(request->file, part[START], part[LENGTH], pages))) {
                reasons[i] = NOT_READ;
                goes_on = false;
                break;
            }
            Chunk chunk = chunk_of(request, pages, column, rows, part, begin);
            chunk.most_page_bytes = most_page_bytes;
            chunk.checks_pages = checks_pages;
            if (request->seal != NULL) request->seal[0] = crc32_of(chunk.pages, (uint32_t)request->seal[0]);
            reasons[i] = decode_chunk(&chunk, &work);
            goes_on = reasons[i] == DECODED || request->num_groups == 1;
            if (chunk.is_optional && chunk.nulls == 0 && request->num_groups > 1) /* another row group may have nulls */
                set_bits(chunk.validity, begin, NULL, chunk.count);
            results[i * RESULT_NUMBERS + NULLS] += chunk.nulls;
            results[i * RESULT_NUMBERS + NULL_LISTS] += chunk.lists.nulls;
        }
        begin += rows[NUM_ROWS];
    }
    free_work(&work);
}

/* Decodes from the file at a path. It must be the planned file once all bytes are read. */
static void decode_file(Request *request, const char *path, const char *planned, size_t most_page_bytes, bool checks_pages,
                        Reason *reasons) {
    bool is_as_planned = false;
    request->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for the writer of a pipe */
    if (request->file >= 0) {
        decode_all(request, most_page_bytes, checks_pages, reasons);
        is_as_planned = is_planned(request->file, planned);
        close(request->file);
    }
    if (!is_as_planned) reasons[0] = NOT_READ;
}

static PyObject *names_of(const Reason *found, size_t count) {
    bool any_refused = false;
    for (size_t i = 0; i < count; i++) any_refused |= found[i] != DECODED;
    if (!any_refused) count = 0;
    PyObject *names = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(reasons[found[i]]);
        if (name == NULL || PyList_SetItem(names, (Py_ssize_t)i, name) < 0) Py_CLEAR(names);
    }
    return names;
}

PyDoc_STRVAR(decode_doc,
             "decode(pages, memory, columns, chunks, rows, results, most_page_bytes, checks_pages, file=-1, seal=None,\n"
             "       path=None, planned='') -> reasons\n\n"
             "Decodes columns of one row group, or the same columns of several, one after the other, without the interpreter's\n"
             "lock.\n\n"
             "columns: int64 [columns, 10]: stored, width, is_integer, levels, list_is_optional, and where in `memory` values,\n"
             "validity, offsets (negative: no lists, which come from one row group only) and validity of lists begin.\n"
             "rows: int64 [row groups, 2]: the first wanted row, and how many. chunks: int64 [row groups, columns, 4]: codec,\n"
             "start and length in `pages`, and values by the footer. file: a descriptor that each chunk is read from, from its\n"
             "start there, just before it is decoded: a core's cache then holds its pages. path, planned: instead of a descriptor,\n"
             "a file to open, and the identity that it must have after the last read.\n"
             "seal: for one row group of a file, int64 [1 + columns]: the CRC-32 of what comes before the chunks, which becomes\n"
             "the CRC with the bytes of all chunks, and the columns in the order in which they are read.\n"
             "results: gets nulls and null lists, int64 [columns, 2]. reasons: of each column '', or why it was refused, and what\n"
             "its places hold then is not defined; where there are several row groups, nothing else is decoded then, nor where\n"
             "a column is 'not read'. Empty: no column was refused.");

static PyObject *decode(PyObject *module, PyObject *arguments) {
    (void)module;
    Request request = {.file = -1};
    Py_ssize_t most_page_bytes;
    int checks_pages;
    PyObject *sealed = Py_None, *path = NULL;
    const char *planned = "";
    if (!PyArg_ParseTuple(arguments, "y*w*y*y*y*w*np|iOO&s", &request.pages, &request.memory, &request.columns,
                          &request.chunks, &request.rows, &request.results, &most_page_bytes, &checks_pages,
                          &request.file, &sealed, PyUnicode_FSConverter, &path, &planned))
        return NULL;
    request.reads_file = path != NULL || request.file >= 0;
    PyObject *names = NULL;
    Py_buffer seal = {.buf = NULL};
    bool has_seal = sealed != Py_None && PyObject_GetBuffer(sealed, &seal, PyBUF_WRITABLE) == 0;
    request.seal = seal.buf;
    bool fits_together = most_page_bytes >= 0 && check(&request) && (!has_seal || check_seal(&request, (size_t)seal.len));
    if (!fits_together && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "row groups, columns and buffers do not fit each other");
    if (!PyErr_Occurred()) {
        Reason *found = calloc(request.num_columns, sizeof *found);
        if (found != NULL) {
            const char *name = path == NULL ? NULL : PyBytes_AsString(path);
            Py_BEGIN_ALLOW_THREADS
            if (name == NULL)
                decode_all(&request, (size_t)most_page_bytes, checks_pages, found);
            else
                decode_file(&request, name, planned, (size_t)most_page_bytes, checks_pages, found);
            Py_END_ALLOW_THREADS
        }
        names = found == NULL ? PyErr_NoMemory() : names_of(found, request.num_columns);
        free(found);
    }
    Py_buffer *buffers[] = {&request.pages, &request.memory, &request.columns, &request.chunks, &request.rows, &request.results};
    for (size_t i = 0; i < 6; i++) PyBuffer_Release(buffers[i]);
    if (has_seal) PyBuffer_Release(&seal);
    Py_XDECREF(path);
    return names;
}

PyDoc_STRVAR(gather_doc,
             "gather(parts, part_rows, runs, order, scratch, joins)\n\n"
             "Writes rows of columns in another order, without the interpreter's lock.\n\n"
             "runs: columns of one width that lie at even distances: where the first goes, bytes from column to column, their\n"
             "number, bytes of a row: 1, 2, 4, 8; int64 [runs, 4]. parts: where their parts lie: address of the first column,\n"
             "bytes from column to column, int64 [runs, parts, 2]. part_rows: rows of the parts, the same in all columns, int64\n"
             "[parts]. order: rows of the parts joined, int64; None: all rows of all parts, one part after the other. joins:\n"
             "whether the parts of each column are joined first; else there is one part, which is read where it is. scratch: room\n"
             "for the order in 32 bits; if parts are joined, then, 8-byte aligned, for the rows of the widest column. The caller\n"
             "answers for addresses: nothing here can check them.");

/* How many rows the parts have; -1 if columns, parts and scratch memory do not fit each other. */
static int64_t rows_to_gather(const Columns *columns, const Py_buffer *parts, bool is_ordered, size_t count, size_t scratch,
                              bool joins) {
    uint64_t rows = 0, widest = 0;
    if (columns->num_parts == 0 || (!joins && columns->num_parts > 1)) return -1;
    size_t num_sides = (size_t)parts->len / sizeof(Side);
    if (num_sides % columns->num_parts != 0 || num_sides / columns->num_parts != columns->count) return -1;
    for (size_t i = 0; i < columns->num_parts; rows += (uint64_t)columns->part_rows[i++])
        if (columns->part_rows[i] < 0 || rows + (uint64_t)columns->part_rows[i] > UINT32_MAX) return -1;
    for (size_t i = 0; i < columns->count; i++) {
        int64_t width = columns->runs[i].width;
        if (width != 1 && width != 2 && width != 4 && width != 8) return -1;
        widest = (uint64_t)width > widest ? (uint64_t)width : widest;
    }
    if (!is_ordered) return (int64_t)rows;
    if (scratch / sizeof(uint64_t) < (count + 1) / 2) return -1;
    return !joins || rows * widest <= scratch - (count + 1) / 2 * sizeof(uint64_t) ? (int64_t)rows : -1;
}

static PyObject *gather(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer parts, part_rows, runs, order = {0}, scratch;
    PyObject *order_or_none;
    int joins;
    if (!PyArg_ParseTuple(arguments, "y*y*y*Ow*p", &parts, &part_rows, &runs, &order_or_none, &scratch, &joins)) return NULL;
    bool is_ordered = order_or_none != Py_None, is_there = true;
    bool fits_all = !is_ordered || PyObject_GetBuffer(order_or_none, &order, PyBUF_SIMPLE) == 0;
    int64_t rows = -1;
    if (fits_all) {
        size_t size = sizeof(int64_t), count = (size_t)order.len / size;
        Columns columns = {(size_t)runs.len / sizeof(Run), (size_t)part_rows.len / size, part_rows.buf, parts.buf, runs.buf};
        const Py_buffer *buffers[] = {&parts, &part_rows, &runs, &order, &scratch};
        for (size_t i = 0; i < 5; i++) fits_all = fits_all && (buffers[i]->len == 0 || (uintptr_t)buffers[i]->buf % size == 0);
        if (fits_all) rows = rows_to_gather(&columns, &parts, is_ordered, count, (size_t)scratch.len, joins);
        if (rows >= 0) {
            Py_BEGIN_ALLOW_THREADS
            uint8_t *joined = joins ? (uint8_t *)scratch.buf + (count + 1) / 2 * sizeof(uint64_t) : NULL;
            if (!is_ordered)
                join_columns(&columns);
            else if ((is_there = short_order(order.buf, count, (uint64_t)rows, scratch.buf)))
                gather_columns(&columns, scratch.buf, count, joined);
            Py_END_ALLOW_THREADS
        }
        if (is_ordered) PyBuffer_Release(&order);
    }
    PyBuffer_Release(&parts);
    PyBuffer_Release(&part_rows);
    PyBuffer_Release(&runs);
    PyBuffer_Release(&scratch);
    if (PyErr_Occurred()) return NULL;
    if (rows < 0) return PyErr_Format(PyExc_ValueError, "columns, parts and rows do not fit each other");
    if (!is_there)
        return PyErr_Format(PyExc_IndexError, "rows were requested that do not exist: there are %lld rows", (long long)rows);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(permute_doc,
             "permute(order, seed, epoch, purpose, index)\n\n"
             "Writes a permutation of range(len(order)) to `order`, int64, without the interpreter's lock: the stable argsort of the\n"
             "words of Philox 4x64 with key (seed, epoch) and counter (0, 0, index, purpose), all numbers modulo 2^64.");

static PyObject *permute_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer order;
    unsigned long long seed, epoch, purpose, index;
    if (!PyArg_ParseTuple(arguments, "w*KKKK", &order, &seed, &epoch, &purpose, &index)) return NULL;
    bool is_aligned = (uintptr_t)order.buf % sizeof(int64_t) == 0, is_done = false;
    if (is_aligned) {
        PermutationKey key = {seed, epoch, purpose, index};
        Py_BEGIN_ALLOW_THREADS
        is_done = permute(&key, (size_t)order.len / sizeof(int64_t), order.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&order);
    if (!is_aligned) return PyErr_Format(PyExc_ValueError, "the order is not an array of int64");
    if (!is_done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(count_values_doc,
             "count_values(pages) -> the values (of lists: levels) of the data pages that are there, by their headers.");

static PyObject *count_page_values(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer pages;
    if (!PyArg_ParseTuple(arguments, "y*", &pages)) return NULL;
    Bytes bytes = {pages.buf, (const uint8_t *)pages.buf + pages.len};
    PyObject *values = PyLong_FromLongLong(count_values(bytes));
    PyBuffer_Release(&pages);
    return values;
}

PyDoc_STRVAR(crc32_doc, "crc32(data, before=0) -> CRC-32 of the data after bytes of which before is the CRC; as zlib.crc32.");

static PyObject *checksum(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(arguments, "y*|I", &data, &crc)) return NULL;
    Bytes bytes = {data.buf, (const uint8_t *)data.buf + data.len};
    Py_BEGIN_ALLOW_THREADS
    crc = crc32_of(bytes, crc);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

PyDoc_STRVAR(has_codec_doc, "has_codec(codec) -> whether pages of this codec, as parquet.thrift numbers it, can be decoded.");

static PyObject *knows_codec(PyObject *module, PyObject *number) {
    (void)module;
    long codec = PyLong_AsLong(number);
    if (codec == -1 && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(has_codec((int)codec));
}

PyDoc_STRVAR(read_footer_doc,
             "read_footer(footer) -> (row groups, leaves, rows, head_end, tail_start, numbers), or None if it is not\n"
             "understood wholly\n\n"
             "footer[:head_end]: version and schema. footer[tail_start:]: what comes after the row groups. numbers: int64 as\n"
             "bytes; of each row group its rows and bytes, then of each leaf: codec, values, uncompressed and compressed\n"
             "bytes, first data page, dictionary page (-1: none).");

static PyObject *footer_numbers(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer footer;
    if (!PyArg_ParseTuple(arguments, "y*", &footer)) return NULL;
    Bytes bytes = {footer.buf, (const uint8_t *)footer.buf + footer.len};
    FooterShape shape;
    PyObject *result = NULL;
    /* A description takes more bytes than it gives numbers, so that memory is bounded by the footer's bytes. */
    bool is_known = read_footer_shape(bytes, &shape) && numbers_of(&shape) <= (size_t)footer.len;
    if (is_known) {
        size_t size = numbers_of(&shape) * sizeof(int64_t);
        int64_t *numbers = malloc(size + 1);
        is_known = numbers != NULL && read_footer(bytes, &shape, numbers);
        if (is_known)
            result = Py_BuildValue("KKLnny#", (unsigned long long)shape.groups, (unsigned long long)shape.leaves,
                                   (long long)shape.rows, (Py_ssize_t)shape.head_end, (Py_ssize_t)shape.tail_start,
                                   (const char *)numbers, (Py_ssize_t)size);
        free(numbers);
    }
    PyBuffer_Release(&footer);
    if (is_known) return result;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(check_footer_doc,
             "check_footer(footer) -> (fault, row group, leaf, has_sound_bounds)\n\n"
             "fault: what contradicts itself in the footer, \"\" for nothing. row group, leaf: where, or -1. has_sound_bounds: whether\n"
             "the bounds in statistics have the bytes of a value, and are not equal where they are called inexact.");

static PyObject *footer_fault(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer footer;
    if (!PyArg_ParseTuple(arguments, "y*", &footer)) return NULL;
    FooterVerdict verdict = check_footer((Bytes){footer.buf, (const uint8_t *)footer.buf + footer.len});
    PyBuffer_Release(&footer);
    return Py_BuildValue("sLLO", faults[verdict.fault], (long long)verdict.group, (long long)verdict.leaf,
                         verdict.has_sound_bounds ? Py_True : Py_False);
}

PyDoc_STRVAR(find_news_doc,
             "find_news(lines, seen, root, most) -> int64 as bytes: start, stop and whether it was understood, of the first\n"
             "`most` lines of JSON with a key, or a kind of value of a key, that no earlier line had, or not understood\n\n"
             "seen: uint64, a power of 2 of them, zeros for the first call; then has what understood lines had. root: any\n"
             "number, the same for all calls.");

static PyObject *find_new_lines(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer lines, seen;
    unsigned long long root;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "y*w*Kn", &lines, &seen, &root, &most)) return NULL;
    size_t slots = (size_t)seen.len / sizeof(uint64_t);
    PyObject *result = NULL;
    if (slots == 0 || (slots & (slots - 1)) || (uintptr_t)seen.buf % sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "the table is not a power of 2 of numbers");
    } else {
        News news = {NULL, 0, 0};
        bool is_whole;
        Py_BEGIN_ALLOW_THREADS
        Bytes bytes = {lines.buf, (const uint8_t *)lines.buf + lines.len};
        is_whole = find_news(bytes, (Seen){seen.buf, slots - 1, root}, most < 0 ? 0 : (size_t)most, &news);
        Py_END_ALLOW_THREADS
        result = is_whole ? PyBytes_FromStringAndSize((const char *)news.lines, (Py_ssize_t)(news.count * sizeof(NewLine)))
                          : PyErr_NoMemory();
        free(news.lines);
    }
    PyBuffer_Release(&lines);
    PyBuffer_Release(&seen);
    return result;
}

PyDoc_STRVAR(pick_doc,
             "pick(rule, counts, place, least, picks, numbers)\n\n"
             "Writes the source of each item of a blend to `picks`, int16 [items], and how many items the source gave before to\n"
             "`numbers`, int64 [items], without the interpreter's lock. rule: float64 [4, sources]: shares, half slopes, base and\n"
             "limits of `BlendRule`. counts: float64 [sources], changed in place. place, least: relative to the rule's start.");

static PyObject *pick_items(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer rule, counts, picks, numbers;
    double place, least;
    if (!PyArg_ParseTuple(arguments, "y*w*ddw*w*", &rule, &counts, &place, &least, &picks, &numbers)) return NULL;
    size_t sources = (size_t)counts.len / sizeof(double), count = (size_t)picks.len / sizeof(int16_t);
    bool fits = sources > 0 && sources <= INT16_MAX + 1 && (size_t)rule.len == 4 * sources * sizeof(double) &&
                (size_t)numbers.len == count * sizeof(int64_t) && (uintptr_t)picks.buf % sizeof(int16_t) == 0;
    const Py_buffer *wide[] = {&rule, &counts, &numbers};
    for (size_t i = 0; i < 3; i++) fits = fits && (uintptr_t)wide[i]->buf % sizeof(double) == 0;
    if (fits) {
        const double *shares = rule.buf;
        BlendRule given = {shares, shares + sources, shares + 2 * sources, shares + 3 * sources, sources, least};
        Py_BEGIN_ALLOW_THREADS
        pick_sources(&given, place, count, counts.buf, picks.buf, numbers.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&rule);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&picks);
    PyBuffer_Release(&numbers);
    if (!fits) return PyErr_Format(PyExc_ValueError, "rule, counts and picks do not fit each other");
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"find_news", find_new_lines, METH_VARARGS, find_news_doc},
    {"decode", decode, METH_VARARGS, decode_doc},
    {"gather", gather, METH_VARARGS, gather_doc},
    {"permute", permute_rows, METH_VARARGS, permute_doc},
    {"pick", pick_items, METH_VARARGS, pick_doc},
    {"read_footer", footer_numbers, METH_VARARGS, read_footer_doc},
    {"check_footer", footer_fault, METH_VARARGS, check_footer_doc},
    {"count_values", count_page_values, METH_VARARGS, count_values_doc},
    {"has_codec", knows_codec, METH_O, has_codec_doc},
    {"crc32", checksum, METH_VARARGS, crc32_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_numbers",
    .m_doc = "Decodes Parquet column chunks of numbers, and of lists of numbers, into memory of the caller; orders rows.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__numbers(void) { return PyModuleDef_Init(&definition); }
