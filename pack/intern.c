/* intern.c: the names in Python's built-in code objects, moved to the heap.
 *
 * libpython contains the code of importlib and others as C data, with the strings in it, and on initialisation makes
 * these strings the one copy of each common name ("append", "path"). Their reference counts, which change whenever a
 * name is used, would lie scattered over 200 pages of data; layout.c can only bring together what is in the heap.
 *
 * From Python 3.12 on such strings are immortal: their counts do not change, and this file is empty.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000

/* Makes every string in the tuple, and in the tuples in it, a copy in the heap. */
static int copy_strings(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i), *copy;

        if (PyTuple_CheckExact(item) && copy_strings(item) < 0)
            return -1;
        if (!PyUnicode_CheckExact(item) || PyUnicode_CHECK_INTERNED(item) || PyUnicode_GET_LENGTH(item) < 2)
            continue;
        copy = _PyUnicode_Copy(item);
        if (!copy)
            return -1;
        PyTuple_SET_ITEM(tuple, i, copy); /* the one in the C data is never freed */
    }
    return 0;
}

/* The linker sends all calls of _PyStaticCode_InternStrings() here (--wrap): one for each such code object, before
 * anything runs. */
int __real__PyStaticCode_InternStrings(PyCodeObject *code);
int __wrap__PyStaticCode_InternStrings(PyCodeObject *code);

int __wrap__PyStaticCode_InternStrings(PyCodeObject *code)
{
    if (copy_strings(code->co_names) < 0 || copy_strings(code->co_localsplusnames) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); i++) {
        PyObject *item = PyTuple_GET_ITEM(code->co_consts, i);

        /* Its own recursion, which the linker does not see, comes too late: the strings would be interned as they are. */
        if (PyCode_Check(item) && __wrap__PyStaticCode_InternStrings((PyCodeObject *)item) < 0)
            return -1;
    }
    if (copy_strings(code->co_consts) < 0)
        return -1;
    return __real__PyStaticCode_InternStrings(code);
}

#endif
