/* share.c: makes code objects share equal parts: the strings, names and tables of thousands of functions.
 *
 * CPython only shares strings that look like names.
 *
 * One rule: only immutable parts are shared, and only among functions: the code of a module or class is run once and
 * freed.
 */
#include <Python.h>

#define Py_BUILD_CORE 1
#include "internal/pycore_code.h"

#include "share.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ENTRIES_MAX (1ul << 17) /* several times the number of parts */

static PyObject **known; /* a hash table, outside the heap, which is part of the image */

static size_t hash_of(PyObject *object)
{
    uint64_t hash = (uint64_t)PyTuple_GET_SIZE(object);

    if (!PyTuple_CheckExact(object))
        return (size_t)PyObject_Hash(object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
        hash = (hash ^ (uintptr_t)PyTuple_GET_ITEM(object, i) >> 4) * 0x9E3779B97F4A7C15ul;
    return hash >> 32;
}

/* Tuples are equal if their items are identical: items are shared before their tuples. */
static int equal(PyObject *one, PyObject *other)
{
    if (Py_TYPE(one) != Py_TYPE(other) || (!PyUnicode_Check(one) && Py_SIZE(one) != Py_SIZE(other)))
        return 0;
    if (PyUnicode_Check(one))
        return PyUnicode_Compare(one, other) == 0;
    if (PyBytes_Check(one))
        return memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), (size_t)Py_SIZE(one)) == 0;
    return memcmp(&PyTuple_GET_ITEM(one, 0), &PyTuple_GET_ITEM(other, 0), (size_t)Py_SIZE(one) * sizeof one) == 0;
}

static void share(PyObject **part)
{
    PyObject *object = *part;
    size_t entry;

    if (!PyBytes_CheckExact(object) && !PyUnicode_CheckExact(object) && !PyTuple_CheckExact(object))
        return;
    if (PyUnicode_CheckExact(object) && PyUnicode_CHECK_INTERNED(object))
        return;
    if (PyTuple_CheckExact(object))
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
            share(&PyTuple_GET_ITEM(object, i));
    entry = hash_of(object) % ENTRIES_MAX;
    while (known[entry] && !equal(known[entry], object))
        entry = (entry + 1) % ENTRIES_MAX;
    if (!known[entry])
        known[entry] = Py_NewRef(object);
    *part = Py_NewRef(known[entry]);
    Py_DECREF(object);
}

/* The linker redirects all calls of _PyCode_New() here (--wrap): it creates the code that is read or compiled. */
PyCodeObject *__real__PyCode_New(struct _PyCodeConstructor *parts);
PyCodeObject *__wrap__PyCode_New(struct _PyCodeConstructor *parts);

PyCodeObject *__wrap__PyCode_New(struct _PyCodeConstructor *parts)
{
    PyCodeObject *code = __real__PyCode_New(parts);

    if (!code || !known || !(code->co_flags & CO_OPTIMIZED))
        return code;
    share(&code->co_consts);
    share(&code->co_names);
    share(&code->co_localsplusnames);
    share(&code->co_localspluskinds);
    share(&code->co_qualname);
    share(&code->co_linetable);
    share(&code->co_exceptiontable);
    return code;
}

int share_begin(void)
{
    known = mmap(NULL, ENTRIES_MAX * sizeof *known, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return known != MAP_FAILED;
}

void share_end(void)
{
    for (size_t entry = 0; entry < ENTRIES_MAX; entry++)
        Py_XDECREF(known[entry]);
    munmap(known, ENTRIES_MAX * sizeof *known);
    known = NULL;
}
