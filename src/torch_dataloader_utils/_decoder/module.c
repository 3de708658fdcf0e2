/* The Python functions: check their arguments, and decode without the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder.h"

static const char *const reasons[] = {"", "damaged", "codec", "encoding", "checksum", "too large", "memory", "not read"};

typedef struct {
    Chunk chunk;
    long long start; /* in the file, where `pages` are to be read from */
    Py_buffer pages, values, validity, offsets, list_validity;
    Reason reason;
} Job;

static void release(Job *jobs, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyBuffer_Release(&jobs[i].pages);
        PyBuffer_Release(&jobs[i].values);
        PyBuffer_Release(&jobs[i].validity);
        PyBuffer_Release(&jobs[i].offsets);
        PyBuffer_Release(&jobs[i].list_validity);
    }
    free(jobs);
}

static int is_layout(Layout layout) {
    if (layout.stored == 0) return layout.width == 1;
    return (layout.width == 1 || layout.width == 2 || layout.width == 4 || layout.width == 8) &&
           layout.width <= layout.stored && layout.stored <= 8;
}

/* Whether the buffers of lists fit their rows; true for flat columns. */
static int fits_lists(const Job *job) {
    const Chunk *chunk = &job->chunk;
    if (job->offsets.obj == NULL) return 1;
    return chunk->num_values <= INT32_MAX && chunk->count < job->offsets.len / (Py_ssize_t)sizeof(int32_t) &&
           (uintptr_t)job->offsets.buf % sizeof(int32_t) == 0 &&
           (!chunk->lists.is_optional || (chunk->count + 7) / 8 <= job->list_validity.len);
}

/* Reads `pages` from a file, all of them. */
static bool read_pages(const Job *job, int file) {
    uint8_t *pages = job->pages.buf;
    for (Py_ssize_t have = 0; have < job->pages.len;) {
        ssize_t more = pread(file, pages + have, (size_t)(job->pages.len - have), (off_t)(job->start + have));
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return false;
        have += more;
    }
    return true;
}

/* Fills a job from (pages, start, codec, stored, width, is_integer, is_optional, num_values, first, count, values, validity), and
 * for lists (..., offsets, list_validity, list_is_optional). */
static int parse(PyObject *arguments, Job *job) {
    Chunk *chunk = &job->chunk;
    long long num_values, first, count;
    int is_integer, is_optional, list_is_optional = 0;
    if (!PyArg_ParseTuple(arguments, "y*LiiippLLLw*w*|w*w*p", &job->pages, &job->start, &chunk->codec,
                          &chunk->layout.stored, &chunk->layout.width, &is_integer, &is_optional, &num_values, &first, &count, &job->values,
                          &job->validity, &job->offsets, &job->list_validity, &list_is_optional))
        return 0;
    chunk->pages = (Bytes){job->pages.buf, (const uint8_t *)job->pages.buf + job->pages.len};
    chunk->layout.is_integer = is_integer;
    chunk->is_optional = is_optional;
    chunk->num_values = num_values;
    chunk->first = first;
    chunk->count = count;
    chunk->room = job->offsets.obj == NULL ? count : num_values;
    chunk->values = job->values.buf;
    chunk->validity = job->validity.buf;
    chunk->lists.offsets = job->offsets.buf;
    chunk->lists.validity = job->list_validity.buf;
    chunk->lists.is_optional = list_is_optional;
    int64_t most = INT64_MAX / 128;
    size_t bits = chunk->layout.stored == 0 ? 1 : 8 * (size_t)chunk->layout.width;
    if (!is_layout(chunk->layout) || num_values < 0 || num_values > most || first < 0 || count < 0 ||
        first > num_values || count > num_values - first || ((size_t)chunk->room * bits + 7) / 8 > (size_t)job->values.len ||
        (is_optional && (chunk->room + 7) / 8 > job->validity.len) ||
        (uintptr_t)job->values.buf % (size_t)chunk->layout.width || !fits_lists(job)) {
        PyErr_SetString(PyExc_ValueError, "rows, layout and buffers do not fit each other");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(decode_doc,
             "decode(chunks, most_page_bytes, checks_pages, file=-1) -> list of (nulls, pages, reason, null_lists)\n\n"
             "Decodes column chunks, one after the other, without the interpreter's lock.\n\n"
             "file: a descriptor; each chunk's pages are read from it before they are decoded, so that all chunks can share\n"
             "one buffer, which stays in a core's cache.\n"
             "chunks: tuples of (pages, start in the file, codec, stored, width, is_integer, is_optional, num_values, first, count, values,\n"
             "validity), of lists also offsets, list_validity, list_is_optional; see decoder.h. reason: '' where the chunk was\n"
             "decoded; else why not, and what the buffers hold then is not defined.");

static PyObject *decode(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *chunks;
    Py_ssize_t most_page_bytes;
    int checks_pages, file = -1;
    if (!PyArg_ParseTuple(arguments, "O!np|i", &PyList_Type, &chunks, &most_page_bytes, &checks_pages, &file)) return NULL;
    if (most_page_bytes < 0) return PyErr_Format(PyExc_ValueError, "most_page_bytes is negative");
    Py_ssize_t count = PyList_Size(chunks);
    Job *jobs = calloc((size_t)count + 1, sizeof *jobs);
    if (jobs == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *each = PyList_GetItem(chunks, i);
        if (each == NULL || !PyTuple_Check(each)) {
            PyErr_SetString(PyExc_TypeError, "chunks must be tuples");
            release(jobs, i);
            return NULL;
        }
        if (!parse(each, &jobs[i])) {
            release(jobs, i + 1);
            return NULL;
        }
        if (file >= 0 && (jobs[i].pages.readonly || jobs[i].start < 0)) {
            PyErr_SetString(PyExc_ValueError, "pages cannot be read to there, or from there");
            release(jobs, i + 1);
            return NULL;
        }
        jobs[i].chunk.most_page_bytes = (size_t)most_page_bytes;
        jobs[i].chunk.checks_pages = checks_pages;
    }
    Work work;
    memset(&work, 0, sizeof work);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        jobs[i].reason = file < 0 || read_pages(&jobs[i], file) ? decode_chunk(&jobs[i].chunk, &work) : NOT_READ;
    free_work(&work);
    Py_END_ALLOW_THREADS
    PyObject *results = PyList_New(count);
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        const Chunk *chunk = &jobs[i].chunk;
        PyObject *result = Py_BuildValue("LLsL", (long long)chunk->nulls, (long long)chunk->pages_decoded,
                                         reasons[jobs[i].reason], (long long)chunk->lists.nulls);
        if (result == NULL || PyList_SetItem(results, i, result) < 0) Py_CLEAR(results);
    }
    release(jobs, count);
    return results;
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
             "bytes, first data page, dictionary page, physical type, and of size statistics: bytes of text, lengths of the\n"
             "histograms of repetition and definition levels (-1: none).");

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

/* What `decode_groups` is given of each column, and of each chunk. */
enum { STORED, WIDTH, IS_INTEGER, IS_OPTIONAL, VALUES, VALIDITY, COLUMN_NUMBERS };
enum { CODEC_OF, START, LENGTH, PART_NUMBERS };

typedef struct {
    Py_buffer pages, memory, columns, chunks, rows, nulls;
    size_t num_columns, num_groups;
    int64_t num_rows;
} Groups;

static bool fits(int64_t start, uint64_t length, Py_ssize_t size) {
    return start >= 0 && start <= size && length <= (uint64_t)(size - start);
}

/* Whether all places lie in their buffers, so that no chunk can be decoded to anywhere else. */
static bool check_groups(Groups *groups) {
    size_t size = sizeof(int64_t), num_columns = groups->num_columns = (size_t)groups->columns.len / size / COLUMN_NUMBERS;
    size_t num_groups = groups->num_groups = (size_t)groups->rows.len / size;
    const int64_t *columns = groups->columns.buf, *rows = groups->rows.buf, *part = groups->chunks.buf;
    const Py_buffer *arrays[] = {&groups->columns, &groups->rows, &groups->chunks, &groups->nulls};
    for (size_t i = 0; i < 4; i++)
        if ((uintptr_t)arrays[i]->buf % size) return false;
    if (num_columns == 0 || (size_t)groups->nulls.len / size < num_columns ||
        num_groups > (size_t)groups->chunks.len / size / PART_NUMBERS / num_columns)
        return false;
    groups->num_rows = 0;
    for (size_t i = 0; i < num_groups; groups->num_rows += rows[i++])
        if (rows[i] < 0 || rows[i] > INT32_MAX || groups->num_rows > INT32_MAX) return false;
    uint64_t bits = (uint64_t)groups->num_rows;
    for (size_t i = 0; i < num_columns; i++, columns += COLUMN_NUMBERS) {
        int64_t stored = columns[STORED], width = columns[WIDTH];
        if (stored < 0 || stored > 8 || width < 1 || width > 8 || !is_layout((Layout){(int)stored, (int)width, false}))
            return false;
        uint64_t bytes = stored == 0 ? (bits + 7) / 8 : bits * (uint64_t)width;
        if (!fits(columns[VALUES], bytes, groups->memory.len) ||
            !fits(columns[VALIDITY], columns[IS_OPTIONAL] ? (bits + 7) / 8 : 0, groups->memory.len) ||
            ((uintptr_t)groups->memory.buf + (uintptr_t)columns[VALUES]) % (uintptr_t)width)
            return false;
    }
    for (size_t i = 0; i < num_groups * num_columns; i++, part += PART_NUMBERS)
        if (part[LENGTH] < 0 || !fits(part[START], (uint64_t)part[LENGTH], groups->pages.len)) return false;
    return true;
}

static Reason decode_all(const Groups *groups, size_t most_page_bytes, bool checks_pages) {
    const int64_t *rows = groups->rows.buf, *part = groups->chunks.buf;
    int64_t begin = 0, *nulls = groups->nulls.buf;
    Work work;
    memset(&work, 0, sizeof work);
    memset(nulls, 0, groups->num_columns * sizeof *nulls);
    Reason reason = DECODED;
    for (size_t group = 0; group < groups->num_groups && reason == DECODED; begin += rows[group++]) {
        const int64_t *column = groups->columns.buf;
        for (size_t i = 0; i < groups->num_columns && reason == DECODED; i++, column += COLUMN_NUMBERS, part += PART_NUMBERS) {
            const uint8_t *pages = (const uint8_t *)groups->pages.buf + part[START];
            uint8_t *memory = groups->memory.buf;
            Chunk chunk = {.pages = {pages, pages + part[LENGTH]},
                           .codec = part[CODEC_OF] < 0 || part[CODEC_OF] > INT16_MAX ? -1 : (int)part[CODEC_OF],
                           .layout = {(int)column[STORED], (int)column[WIDTH], column[IS_INTEGER] != 0},
                           .is_optional = column[IS_OPTIONAL] != 0,
                           .num_values = rows[group],
                           .count = rows[group],
                           .room = rows[group],
                           .most_page_bytes = most_page_bytes,
                           .checks_pages = checks_pages,
                           .values = memory + column[VALUES] + (column[STORED] ? begin * column[WIDTH] : 0),
                           .validity = memory + column[VALIDITY],
                           .first_bit = begin};
            reason = decode_chunk(&chunk, &work);
            if (chunk.is_optional && chunk.nulls == 0) set_bits(chunk.validity, begin, NULL, chunk.count);
            nulls[i] += chunk.nulls;
        }
    }
    free_work(&work);
    return reason;
}

PyDoc_STRVAR(decode_groups_doc,
             "decode_groups(pages, memory, columns, chunks, rows, nulls, most_page_bytes, checks_pages) -> reason\n\n"
             "Decodes the same columns of several row groups, one after the other, without the interpreter's lock; ends at the\n"
             "first chunk that is refused.\n\n"
             "columns: int64 [columns, 6]: stored, width, is_integer, is_optional, and where in `memory` values and validity\n"
             "begin. chunks: int64 [row groups, columns, 3]: codec, and start and length in `pages`. rows: int64 [row groups].\n"
             "nulls: gets how many each column has, int64 [columns]. reason: '' if all was decoded.");

static PyObject *decode_groups(PyObject *module, PyObject *arguments) {
    (void)module;
    Groups groups;
    Py_ssize_t most_page_bytes;
    int checks_pages;
    if (!PyArg_ParseTuple(arguments, "y*w*y*y*y*w*np", &groups.pages, &groups.memory, &groups.columns, &groups.chunks,
                          &groups.rows, &groups.nulls, &most_page_bytes, &checks_pages))
        return NULL;
    Reason reason = DECODED;
    bool is_good = most_page_bytes >= 0 && check_groups(&groups);
    if (is_good) {
        Py_BEGIN_ALLOW_THREADS
        reason = decode_all(&groups, (size_t)most_page_bytes, checks_pages);
        Py_END_ALLOW_THREADS
    }
    Py_buffer *buffers[] = {&groups.pages, &groups.memory, &groups.columns, &groups.chunks, &groups.rows, &groups.nulls};
    for (size_t i = 0; i < 6; i++) PyBuffer_Release(buffers[i]);
    if (is_good) return PyUnicode_FromString(reasons[reason]);
    return PyErr_Format(PyExc_ValueError, "row groups, columns and buffers do not fit each other");
}

static PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"decode_groups", decode_groups, METH_VARARGS, decode_groups_doc},
    {"read_footer", footer_numbers, METH_VARARGS, read_footer_doc},
    {"count_values", count_page_values, METH_VARARGS, count_values_doc},
    {"has_codec", knows_codec, METH_O, has_codec_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_numbers",
    .m_doc = "Decodes Parquet column chunks of numbers, and of lists of numbers, into memory of the caller.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__numbers(void) { return PyModuleDef_Init(&definition); }
