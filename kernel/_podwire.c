/* _podwire: system calls that CNI plugins need and Python 3.11 lacks.
 *
 *   setns(fd, nstype)   enters a namespace (from Python 3.12 on: os.setns)
 *   unshare(flags)      moves the process into new namespaces (from Python 3.12 on: os.unshare)
 *   mount(...)          mount(2) without data
 *   fs_type(path)       statfs(2)'s f_type: distinguishes a namespace file from a stale plain file
 *   bpf(...)            bpf(2), which shows eBPF programs
 *   inotify(path, mask) inotify(7), for changes of a directory
 *   spawn_bound(...)    starts a program that the kernel kills when this process ends, however it ends
 *
 * _netlink.c adds functions for netlink messages, _background.c adds background processes. The module is built as an
 * extension for ordinary Python, and linked into the static executable.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

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
podwire_unshare(PyObject *self, PyObject *args)
{
    int flags;

    if (!PyArg_ParseTuple(args, "i", &flags))
        return NULL;
    if (unshare(flags) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *
podwire_mount(PyObject *self, PyObject *args)
{
    PyObject *source, *target;
    const char *type;
    unsigned long flags;
    int rc;

    if (!PyArg_ParseTuple(args, "O&O&sk", PyUnicode_FSConverter, &source, PyUnicode_FSConverter, &target, &type,
                          &flags))
        return NULL;
    rc = mount(PyBytes_AS_STRING(source), PyBytes_AS_STRING(target), type, flags, NULL);
    if (rc < 0)
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AS_STRING(target));
    Py_DECREF(source);
    Py_DECREF(target);
    if (rc < 0)
        return NULL;
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
    do
        rc = statfs(PyBytes_AS_STRING(path), &info);
    while (rc < 0 && errno == EINTR);
    Py_DECREF(path);
    if (rc < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromUnsignedLong((unsigned long)info.f_type);
}

/* A program to start: prepared before vfork(), since the child must not allocate memory. */
typedef struct {
    char **argv, **env;
    int streams[3];     /* the child's 0, 1 and 2; negative: inherited */
    sigset_t defaults;  /* the signals that start with their default actions */
    pid_t parent;
    volatile int error; /* the child's errno when exec failed; the memory is shared until exec */
} Program;

/* Runs in the child, with all signals blocked, in the memory of the suspended parent. Never returns. */
static _Noreturn __attribute__((noinline)) void
become(Program *program)
{
    sigset_t none;

    /* SIGKILL, since a program must not handle the signal when no process waits for it. getppid() detects a parent that
     * ended before the prctl. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        goto failed;
    if (getppid() != program->parent)
        _exit(127);
    if (setpgid(0, 0) < 0) /* so that a kill also ends the program's children */
        goto failed;
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&program->defaults, number) == 1 && signal(number, SIG_DFL) == SIG_ERR)
            goto failed;
    for (int stream = 0; stream < 3; stream++) {
        int fd = program->streams[stream];

        if (fd == stream ? fcntl(fd, F_SETFD, 0) < 0 : fd >= 0 && dup2(fd, stream) < 0)
            goto failed;
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program->argv[0], program->argv, program->env);
failed:
    program->error = errno;
    _exit(127);
}

/* Returns a NULL-terminated array, for PyMem_Free(), of the strings of a list of bytes, valid as long as the list. */
static char **
strings(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **array = PyMem_New(char *, count + 1);

    if (!array)
        return (char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, i), &array[i], NULL) < 0) { /* refuses a NUL inside */
            PyMem_Free(array);
            return NULL;
        }
    array[count] = NULL;
    return array;
}

/* Starts the program by vfork(), as posix_spawn() does, so that no memory is copied. */
static pid_t
start(Program *program)
{
    sigset_t all, before;
    pid_t pid;

    sigfillset(&all);
    program->parent = getpid();
    program->error = 0;
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid = vfork();
    if (pid == 0)
        become(program);
    if (pid < 0)
        program->error = errno;
    else if (program->error)
        waitpid(pid, NULL, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return program->error ? -1 : pid;
}

static PyObject *
podwire_spawn_bound(PyObject *self, PyObject *args)
{
    PyObject *argv, *env, *defaults;
    Program program = {0};
    pid_t pid = -1;

    if (!PyArg_ParseTuple(args, "O!O!(iii)O!", &PyList_Type, &argv, &PyList_Type, &env, &program.streams[0],
                          &program.streams[1], &program.streams[2], &PyTuple_Type, &defaults))
        return NULL;
    if (PyList_GET_SIZE(argv) == 0)
        return PyErr_Format(PyExc_ValueError, "argv is empty");
    sigemptyset(&program.defaults);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(defaults, i));

        if (PyErr_Occurred())
            return NULL;
        if (number < 1 || number >= NSIG)
            return PyErr_Format(PyExc_ValueError, "no signal: %ld", number);
        sigaddset(&program.defaults, (int)number);
    }
    program.argv = strings(argv);
    program.env = program.argv ? strings(env) : NULL;
    if (program.env) {
        pid = start(&program);
        if (pid < 0) {
            errno = program.error;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyList_GET_ITEM(argv, 0));
        }
    }
    PyMem_Free(program.argv);
    PyMem_Free(program.env);
    return pid < 0 ? NULL : PyLong_FromLong(pid);
}

PyDoc_STRVAR(spawn_bound_doc,
             "spawn_bound(argv, env, streams, defaults) -> pid: start a program that gets SIGKILL if the caller ends.\n"
             "The program leads a process group. argv, env: lists of bytes; streams: the descriptors that become its\n"
             "0, 1, 2 (negative: inherited); defaults: signals to reset.");

static PyObject *
podwire_bpf(PyObject *self, PyObject *args)
{
    int command;
    Py_buffer attributes;
    long result;

    if (!PyArg_ParseTuple(args, "iw*", &command, &attributes))
        return NULL;
    result = syscall(SYS_bpf, command, attributes.buf, (unsigned int)attributes.len);
    PyBuffer_Release(&attributes);
    return result < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(result);
}

static PyObject *
podwire_inotify(PyObject *self, PyObject *args)
{
    PyObject *path;
    unsigned int mask;
    int fd;

    if (!PyArg_ParseTuple(args, "O&I", PyUnicode_FSConverter, &path, &mask))
        return NULL;
    fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, PyBytes_AS_STRING(path), mask) < 0) {
        int error = errno;

        close(fd);
        errno = error;
        fd = -1;
    }
    if (fd < 0)
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AS_STRING(path));
    Py_DECREF(path);
    return fd < 0 ? NULL : PyLong_FromLong(fd);
}

static PyMethodDef methods[] = {
    {"setns", podwire_setns, METH_VARARGS, "setns(fd, nstype): enter the namespace behind fd."},
    {"unshare", podwire_unshare, METH_VARARGS, "unshare(flags): move into new namespaces."},
    {"mount", podwire_mount, METH_VARARGS, "mount(source, target, type, flags): mount(2) without data."},
    {"fs_type", podwire_fs_type, METH_VARARGS, "fs_type(path) -> int: statfs(2)'s f_type of path."},
    {"bpf", podwire_bpf, METH_VARARGS,
     "bpf(command, attributes) -> int: bpf(2); the kernel writes its answer into the buffer."},
    {"inotify", podwire_inotify, METH_VARARGS, "inotify(path, mask) -> fd: an inotify descriptor that watches path."},
    {"spawn_bound", podwire_spawn_bound, METH_VARARGS, spawn_bound_doc},
    {NULL, NULL, 0, NULL},
};

extern PyMethodDef netlink_methods[], background_methods[];

/* Interned, for _netlink.c: Python's attribute cache is keyed by the string object, so each new "write" would add an
 * entry. */
PyObject *write_name;

static int
add_functions(PyObject *podwire)
{
    if (!(write_name = PyUnicode_InternFromString("write")) || PyModule_AddFunctions(podwire, netlink_methods) < 0)
        return -1;
    return PyModule_AddFunctions(podwire, background_methods);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_functions}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_podwire",
    .m_doc = "System calls that Python 3.11 lacks, netlink messages and background processes.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__podwire(void)
{
    return PyModuleDef_Init(&module);
}
