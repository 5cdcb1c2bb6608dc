/* _apart: a process of its own that waits for the kernel in our place.
 *
 *   ask_apart(socket, request, report)       for its answer to a netlink request
 *   close_apart(socket, ended, microseconds) for the memory that it frees before a socket is closed
 *
 * One rule: the child shares our memory, so it writes to nothing but its own page, and calls nothing of the C library,
 * which would set errno for us. A part of the module _podwire.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* What a child is to do, and the stack on which it does: a page that is never given back, as nobody knows how long the
 * child uses it. `pipe` is the only descriptor that it keeps beside the socket. */
typedef struct {
    int socket, pipe;
    struct timespec pause;
    size_t size;
    char request[1024];
    alignas(16) char stack[4096 - 1024 - 32];
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

/* The children's part, with all signals blocked: the memory is the parent's, who goes on in it. So they write to nothing
 * but their own stack, and call nothing that knows of threads or errno. Where memory is the reason to kill one, or one
 * dumps core, the kernel kills both: what was asked for is done all the same. */

/* Ends with the answer's errno. */
static int
ask(void *own)
{
    const Errand *errand = own;
    struct {
        struct nlmsghdr header;
        int error;
        char rest[64]; /* what the kernel repeats of the request: cut off */
    } answer;
    long got;

    close_others(errand->socket, errand->pipe);
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

/* Closes the socket last of all: after the parent has, whose end closes the pipe, and after a pause. */
static int
close_last(void *own)
{
    const Errand *errand = own;
    char nothing;

    close_others(errand->socket, errand->pipe);
    call(SYS_read, errand->pipe, (long)&nothing, 1, 0, 0, 0);
    call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&errand->pause, 0, 0, 0);
    call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    return 0; /* not reached */
}

/* Starts a child for an errand, with a copy of all descriptors; returns its process id as Python has it. */
static PyObject *
start(int (*run)(void *), int socket, int pipe, const char *request, size_t size, struct timespec pause)
{
    Errand *errand;
    sigset_t all, before;
    pid_t pid;
    int number;

    if (socket < 0 || pipe < 0)
        return PyErr_Format(PyExc_ValueError, "no descriptor: %d", socket < 0 ? socket : pipe);
    if (size > sizeof(errand->request))
        return PyErr_Format(PyExc_ValueError, "the request has %zu bytes", size);
    errand = mmap(NULL, sizeof(*errand), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (errand == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    errand->socket = socket;
    errand->pipe = pipe;
    errand->pause = pause;
    errand->size = size;
    memcpy(errand->request, request, size);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid = clone(run, errand->stack + sizeof(errand->stack), SHARED_MEMORY | SIGCHLD, errand);
    if (pid < 0 && errno == EINVAL) /* qemu-user knows only threads that share memory: a copy does as well */
        pid = clone(run, errand->stack + sizeof(errand->stack), SIGCHLD, errand);
    number = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        munmap(errand, sizeof(*errand));
        errno = number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(pid);
}

static PyObject *
podwire_ask_apart(PyObject *self, PyObject *args)
{
    int socket, report;
    const char *request;
    Py_ssize_t size;

    if (!PyArg_ParseTuple(args, "iy#i", &socket, &request, &size, &report))
        return NULL;
    return start(ask, socket, report, request, size, (struct timespec){0});
}

static PyObject *
podwire_close_apart(PyObject *self, PyObject *args)
{
    int socket, ended, microseconds;

    if (!PyArg_ParseTuple(args, "iii", &socket, &ended, &microseconds))
        return NULL;
    if (microseconds < 0)
        return PyErr_Format(PyExc_ValueError, "no time: %d", microseconds);
    return start(close_last, socket, ended, "", 0,
                 (struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000});
}

PyDoc_STRVAR(ask_apart_doc,
             "ask_apart(socket, request, report) -> pid: start a process that has nothing open but the descriptors\n"
             "`socket` and `report`, sends `request` (bytes) by the first and waits for the one answer. Its exit\n"
             "status is the errno in it, or of what failed; `report`, a pipe, tells that it has ended.");

PyDoc_STRVAR(close_apart_doc,
             "close_apart(socket, ended, microseconds) -> pid: start a process that has nothing open but the\n"
             "descriptors `socket` and `ended`, the reading end of a pipe, and ends that long after the pipe has ended.");

PyMethodDef apart_methods[] = {
    {"ask_apart", podwire_ask_apart, METH_VARARGS, ask_apart_doc},
    {"close_apart", podwire_close_apart, METH_VARARGS, close_apart_doc},
    {NULL, NULL, 0, NULL},
};
