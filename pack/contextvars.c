/* contextvars.c: the module `_contextvars`, which Debian's static libpython lacks, although it has the functions.
 *
 * contextvars needs it, and asyncio and decimal need contextvars. The interface is that of CPython's module.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *copy_context(PyObject *self, PyObject *unused)
{
    return PyContext_CopyCurrent();
}

static PyMethodDef methods[] = {
    {"copy_context", copy_context, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    if (PyModule_AddType(module, &PyContext_Type) < 0 || PyModule_AddType(module, &PyContextVar_Type) < 0)
        return -1;
    return PyModule_AddType(module, &PyContextToken_Type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_types},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_contextvars",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__contextvars(void)
{
    return PyModuleDef_Init(&module);
}
