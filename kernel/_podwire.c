/* _podwire: the two system calls a CNI plugin needs that Python 3.11 does not offer.
 *
 *   setns(fd, nstype)  enters a namespace (Python 3.12 has os.setns)
 *   fs_type(path)      statfs(2)'s f_type: tells a namespace file from a left-over plain file
 *
 * Built as an extension for ordinary Python, and linked into the static executable.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <sys/vfs.h>

static PyObject *
podwire_setns(PyObject *self, PyObject *args)
{
    int fd, nstype;

    if (!PyArg_ParseTuple(args, "ii", &fd, &nstype))
        return NULL;
    if (setns(fd, nstype) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *
podwire_fs_type(PyObject *self, PyObject *args)
{
    PyObject *path;
    struct statfs info;
    int rc;

    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path))
        return NULL;
    rc = statfs(PyBytes_AS_STRING(path), &info);
    Py_DECREF(path);
    if (rc < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromUnsignedLong((unsigned long)info.f_type);
}

static PyMethodDef methods[] = {
    {"setns", podwire_setns, METH_VARARGS, "setns(fd, nstype): enter the namespace behind fd."},
    {"fs_type", podwire_fs_type, METH_VARARGS, "fs_type(path) -> int: statfs(2)'s f_type of path."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_podwire",
    .m_doc = "System calls that Python 3.11 lacks.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__podwire(void)
{
    return PyModuleDef_Init(&module);
}
