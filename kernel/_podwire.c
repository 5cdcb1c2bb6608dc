/* _podwire: what a CNI plugin needs of the kernel that Python 3.11 does not offer.
 *
 *   setns(fd, nstype)   enters a namespace (Python 3.12 has os.setns)
 *   unshare(flags)      moves the process into new namespaces (Python 3.12 has os.unshare)
 *   mount(...)          mount(2) without data
 *   fs_type(path)       statfs(2)'s f_type: tells a namespace file from a left-over plain file
 *   spawn_bound(...)    starts a program that the kernel kills when this process ends, however it ends
 *   ask_apart(...)      has a process of its own wait for the kernel's answer to a netlink request
 *
 * Netlink messages are in _netlink.c. Built as an extension for ordinary Python, and linked into the static executable.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <string.h>
#include <sys/mman.h>
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

/* A program to start; everything is at hand before vfork(), since the child may not allocate. */
typedef struct {
    char **argv, **env;
    int streams[3];     /* what becomes 0, 1 and 2; negative: inherited */
    sigset_t defaults;  /* the signals that start with their default actions */
    pid_t parent;
    volatile int error; /* the child's errno, when it came to no exec: the memory is shared until then */
} Program;

/* The child's part, with all signals blocked: shares the parent's memory, whose thread stands still. Never returns. */
static _Noreturn __attribute__((noinline)) void
become(Program *program)
{
    sigset_t none;

    /* SIGKILL: nothing a program does about another signal is wanted when nobody is left to wait for it. The second
     * look is for a parent that ended before the kernel knew. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        goto failed;
    if (getppid() != program->parent)
        _exit(127);
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

/* Returns the strings of a list of bytes, with a NULL behind them, for PyMem_Free(); they live as long as the list. */
static char **
strings(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **found = PyMem_New(char *, count + 1);

    if (!found)
        return (char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, i), &found[i], NULL) < 0) { /* refuses a NUL inside */
            PyMem_Free(found);
            return NULL;
        }
    found[count] = NULL;
    return found;
}

/* The parent's part. vfork(), as posix_spawn() does: nothing of our memory is copied. */
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

/* A system call that leaves errno alone; returns what the kernel does, a negative errno for a failure. */
#if defined(__x86_64__)
#define SHARED_MEMORY CLONE_VM
static inline long
call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}
#elif defined(__aarch64__)
#define SHARED_MEMORY CLONE_VM
static inline long
call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#define SHARED_MEMORY 0 /* a copy of the memory, with an errno of its own */
static inline long
call(long number, long a, long b, long c, long d, long e, long f)
{
    long rc = syscall(number, a, b, c, d, e, f);

    return rc < 0 ? -errno : rc;
}
#endif

/* What a child asks, and the stack on which it does: a page that is never given back, as nobody knows how long the
 * child uses it. */
typedef struct {
    int socket, report;
    size_t size;
    char request[1024];
    alignas(16) char stack[4096 - 1024 - 16];
} Errand;

/* Closes all descriptors but two. */
static inline void
close_others(unsigned one, unsigned two)
{
    unsigned low = one < two ? one : two, high = one < two ? two : one;

    if (call(SYS_close_range, high + 1, ~0U, 0, 0, 0, 0) == 0) {
        if (low + 1 < high)
            call(SYS_close_range, low + 1, high - 1, 0, 0, 0, 0);
        if (low > 0)
            call(SYS_close_range, 0, low - 1, 0, 0, 0, 0);
        return;
    }
    for (unsigned fd = 0; fd < 1024; fd++) /* before Linux 5.9; a verb never has as many open */
        if (fd != one && fd != two)
            call(SYS_close, fd, 0, 0, 0, 0, 0);
}

/* The child's part, with all signals blocked: the memory is the parent's, who goes on in it. So it writes to nothing
 * but its own stack, and calls nothing that knows of threads or errno. Ends with the answer's errno. */
static int
run_errand(void *own)
{
    const Errand *errand = own;
    struct {
        struct nlmsghdr header;
        int error;
        char rest[64]; /* what the kernel repeats of the request: cut off */
    } answer;
    long got;

    close_others(errand->socket, errand->report);
    got = call(SYS_sendto, errand->socket, (long)errand->request, errand->size, 0, 0, 0);
    if (got >= 0)
        got = call(SYS_recvfrom, errand->socket, (long)&answer, sizeof(answer), 0, 0, 0);
    if (got >= 0 && (got < (long)NLMSG_LENGTH(sizeof(int)) || answer.header.nlmsg_type != NLMSG_ERROR))
        got = -EBADMSG;
    else if (got >= 0)
        got = answer.error;
    call(SYS_exit_group, got > 0 || got < -255 ? 255 : -got, 0, 0, 0, 0, 0);
    return 0; /* not reached */
}

static PyObject *
podwire_ask_apart(PyObject *self, PyObject *args)
{
    int socket, report, number;
    const char *request;
    Py_ssize_t size;
    Errand *errand;
    sigset_t all, before;
    pid_t pid;

    if (!PyArg_ParseTuple(args, "iy#i", &socket, &request, &size, &report))
        return NULL;
    if (socket < 0 || report < 0)
        return PyErr_Format(PyExc_ValueError, "no descriptor: %d", socket < 0 ? socket : report);
    if (size > (Py_ssize_t)sizeof(errand->request))
        return PyErr_Format(PyExc_ValueError, "the request has %zd bytes", size);
    errand = mmap(NULL, sizeof(*errand), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (errand == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    errand->socket = socket;
    errand->report = report;
    errand->size = size;
    memcpy(errand->request, request, size);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid = clone(run_errand, errand->stack + sizeof(errand->stack), SHARED_MEMORY | SIGCHLD, errand);
    if (pid < 0 && errno == EINVAL) /* qemu-user knows only threads that share memory: a copy does as well */
        pid = clone(run_errand, errand->stack + sizeof(errand->stack), SIGCHLD, errand);
    number = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        munmap(errand, sizeof(*errand));
        errno = number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(pid);
}

PyDoc_STRVAR(ask_apart_doc,
             "ask_apart(socket, request, report) -> pid: start a process that has nothing open but the descriptors\n"
             "`socket` and `report`, sends `request` (bytes) by the first and waits for the one answer. Its exit\n"
             "status is the errno in it, or of what failed; `report`, a pipe, tells that it has ended.");

PyDoc_STRVAR(spawn_bound_doc,
             "spawn_bound(argv, env, streams, defaults) -> pid: start a program that gets SIGKILL when we end.\n"
             "argv, env: lists of bytes; streams: what becomes 0, 1, 2 (negative: ours); defaults: signals to reset.");

static PyMethodDef methods[] = {
    {"setns", podwire_setns, METH_VARARGS, "setns(fd, nstype): enter the namespace behind fd."},
    {"unshare", podwire_unshare, METH_VARARGS, "unshare(flags): move into new namespaces."},
    {"mount", podwire_mount, METH_VARARGS, "mount(source, target, type, flags): mount(2) without data."},
    {"fs_type", podwire_fs_type, METH_VARARGS, "fs_type(path) -> int: statfs(2)'s f_type of path."},
    {"spawn_bound", podwire_spawn_bound, METH_VARARGS, spawn_bound_doc},
    {"ask_apart", podwire_ask_apart, METH_VARARGS, ask_apart_doc},
    {NULL, NULL, 0, NULL},
};

extern PyMethodDef netlink_methods[];

static int
add_netlink(PyObject *own)
{
    return PyModule_AddFunctions(own, netlink_methods);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_netlink}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_podwire",
    .m_doc = "What Python 3.11 lacks of the kernel's, and netlink messages.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__podwire(void)
{
    return PyModuleDef_Init(&module);
}
