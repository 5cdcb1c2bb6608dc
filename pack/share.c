/* share.c: equal parts of code objects are one: the texts, names and tables that thousands of functions have of their own.
 *
 * CPython shares what looks like a name, and nothing else. One rule: only what cannot change is shared, and only among
 * functions: the code of a module or class runs once and is gone.
 */
#include <Python.h>

#define Py_BUILD_CORE 1
#include "internal/pycore_code.h"

#include "share.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PLACES (1ul << 17) /* several times what there is */

static PyObject **known; /* a hash table, outside the heap, which is part of the image */

static size_t hash_of(PyObject *thing)
{
    uint64_t hash = (uint64_t)PyTuple_GET_SIZE(thing);

    if (!PyTuple_CheckExact(thing))
        return (size_t)PyObject_Hash(thing);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(thing); i++)
        hash = (hash ^ (uintptr_t)PyTuple_GET_ITEM(thing, i) >> 4) * 0x9E3779B97F4A7C15ul;
    return hash >> 32;
}

/* Tuples are equal when their items are the same: these have been shared before. */
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
    PyObject *thing = *part;
    size_t place;

    if (!PyBytes_CheckExact(thing) && !PyUnicode_CheckExact(thing) && !PyTuple_CheckExact(thing))
        return;
    if (PyUnicode_CheckExact(thing) && PyUnicode_CHECK_INTERNED(thing))
        return;
    if (PyTuple_CheckExact(thing))
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(thing); i++)
            share(&PyTuple_GET_ITEM(thing, i));
    place = hash_of(thing) % PLACES;
    while (known[place] && !equal(known[place], thing))
        place = (place + 1) % PLACES;
    if (!known[place])
        known[place] = Py_NewRef(thing);
    *part = Py_NewRef(known[place]);
    Py_DECREF(thing);
}

/* The linker sends all calls of _PyCode_New() here (--wrap): it makes what is read from a bundle, and what is compiled. */
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
    known = mmap(NULL, PLACES * sizeof *known, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return known != MAP_FAILED;
}

void share_end(void)
{
    for (size_t place = 0; place < PLACES; place++)
        Py_XDECREF(known[place]);
    munmap(known, PLACES * sizeof *known);
    known = NULL;
}
