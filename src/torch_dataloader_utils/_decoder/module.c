/* The Python functions: check their arguments, and decode without the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

static const char *const reasons[] = {"", "damaged", "codec", "encoding", "checksum", "too large", "memory"};

typedef struct {
    Chunk chunk;
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

/* Fills a job from (pages, codec, stored, width, is_integer, is_optional, num_values, first, count, values, validity), and
 * for lists (..., offsets, list_validity, list_is_optional). */
static int parse(PyObject *arguments, Job *job) {
    Chunk *chunk = &job->chunk;
    long long num_values, first, count;
    int is_integer, is_optional, list_is_optional = 0;
    if (!PyArg_ParseTuple(arguments, "y*iiippLLLw*w*|w*w*p", &job->pages, &chunk->codec, &chunk->layout.stored,
                          &chunk->layout.width, &is_integer, &is_optional, &num_values, &first, &count, &job->values,
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
             "decode(chunks, most_page_bytes, checks_pages) -> list of (nulls, pages, reason, null_lists)\n\n"
             "Decodes column chunks, without the interpreter's lock.\n\n"
             "chunks: tuples of (pages, codec, stored, width, is_integer, is_optional, num_values, first, count, values,\n"
             "validity), of lists also offsets, list_validity, list_is_optional; see decoder.h. reason: '' where the chunk was\n"
             "decoded; else why not, and what the buffers hold then is not defined.");

static PyObject *decode(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *chunks;
    Py_ssize_t most_page_bytes;
    int checks_pages;
    if (!PyArg_ParseTuple(arguments, "O!np", &PyList_Type, &chunks, &most_page_bytes, &checks_pages)) return NULL;
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
        jobs[i].chunk.most_page_bytes = (size_t)most_page_bytes;
        jobs[i].chunk.checks_pages = checks_pages;
    }
    Work work;
    memset(&work, 0, sizeof work);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) jobs[i].reason = decode_chunk(&jobs[i].chunk, &work);
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

PyDoc_STRVAR(read_chunks_doc,
             "read_chunks(footer, num_groups, num_leaves, numbers) -> whether the footer was understood\n\n"
             "numbers: room for int64 [num_groups, num_leaves, 6]: codec, values, uncompressed and compressed bytes, first\n"
             "data page, dictionary page (-1: none) of every chunk.");

static PyObject *read_chunks(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer footer, numbers;
    Py_ssize_t num_groups, num_leaves;
    if (!PyArg_ParseTuple(arguments, "y*nnw*", &footer, &num_groups, &num_leaves, &numbers)) return NULL;
    PyObject *result = NULL;
    size_t most = (size_t)numbers.len / sizeof(int64_t) / CHUNK_NUMBERS;
    if (num_groups < 0 || num_leaves < 0 || (num_leaves > 0 && (size_t)num_groups > most / (size_t)num_leaves) ||
        (uintptr_t)numbers.buf % sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "numbers has no room for so many chunks");
    } else {
        Bytes bytes = {footer.buf, (const uint8_t *)footer.buf + footer.len};
        result = PyBool_FromLong(read_footer(bytes, (uint64_t)num_groups, (uint64_t)num_leaves, numbers.buf));
    }
    PyBuffer_Release(&footer);
    PyBuffer_Release(&numbers);
    return result;
}

static PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"read_chunks", read_chunks, METH_VARARGS, read_chunks_doc},
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
