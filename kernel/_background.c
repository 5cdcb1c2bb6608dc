/* Background processes that wait for the kernel, a part of the module _podwire.
 *
 *   send_in_background(...)   sends a netlink request and waits for the answer
 *   close_in_background(...)  keeps a socket open until after the parent has ended; closing it can wait for the kernel
 *
 * One rule: the child shares the parent's memory, so it writes only to its own page, and calls no function of the C
 * library, which would set the parent's errno.
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

/* A system call that does not set errno; returns the kernel's result, a negative errno for a failure. */
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
#define SHARED_MEMORY 0 /* the child gets a copy of the memory, and so another errno */
static inline long
call(long number, long a, long b, long c, long d, long e, long f)
{
    long rc = syscall(number, a, b, c, d, e, f);

    return rc < 0 ? -errno : rc;
}
#endif

/* A child's task and stack, in one page, which is never unmapped, since the parent does not know when the child ends.
 * The socket and `pipe` are the only descriptors that the child keeps. */
typedef struct {
    int socket, pipe;
    struct timespec pause;
    size_t size;
    char request[1024];
    alignas(16) char stack[4096 - 1024 - 32];
} Task;

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
    for (unsigned fd = 0; fd < 1024; fd++) /* before Linux 5.9; a verb has fewer open descriptors */
        if (fd != one && fd != two)
            call(SYS_close, fd, 0, 0, 0, 0, 0);
}

/* The functions of the children run with all signals blocked, in the memory of the running parent: they write only to
 * their stack, and call nothing that uses threads or errno. An OOM kill or a core dump of one process ends both; by
 * then the request has been sent. */

/* Sends the request, waits for the answer and exits with its errno. */
static int
send_request(void *argument)
{
    const Task *task = argument;
    struct {
        struct nlmsghdr header;
        int error;
        char rest[64]; /* the request, which the kernel repeats, truncated */
    } answer;
    long rc;

    close_others(task->socket, task->pipe);
    rc = call(SYS_sendto, task->socket, (long)task->request, task->size, 0, 0, 0);
    if (rc >= 0)
        rc = call(SYS_recvfrom, task->socket, (long)&answer, sizeof(answer), 0, 0, 0);
    if (rc >= 0 && (rc < (long)NLMSG_LENGTH(sizeof(int)) || answer.header.nlmsg_type != NLMSG_ERROR))
        rc = -EBADMSG;
    else if (rc >= 0)
        rc = answer.error;
    call(SYS_exit_group, rc > 0 || rc < -255 ? 255 : -rc, 0, 0, 0, 0, 0);
    return 0; /* not reached */
}

/* Closes the socket when the parent has ended, which closes the pipe, and the pause is over. */
static int
close_late(void *argument)
{
    const Task *task = argument;
    char unused;

    close_others(task->socket, task->pipe);
    call(SYS_read, task->pipe, (long)&unused, 1, 0, 0, 0);
    call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&task->pause, 0, 0, 0);
    call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    return 0; /* not reached */
}

/* Starts a child that runs a task, with a copy of all descriptors; returns its process ID as a Python object. */
static PyObject *
start(int (*run)(void *), int socket, int pipe, const char *request, size_t size, struct timespec pause)
{
    Task *task;
    sigset_t all, before;
    pid_t pid;
    int number;

    if (socket < 0 || pipe < 0)
        return PyErr_Format(PyExc_ValueError, "not a descriptor: %d", socket < 0 ? socket : pipe);
    if (size > sizeof(task->request))
        return PyErr_Format(PyExc_ValueError, "the request has %zu bytes", size);
    task = mmap(NULL, sizeof(*task), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (task == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    task->socket = socket;
    task->pipe = pipe;
    task->pause = pause;
    task->size = size;
    memcpy(task->request, request, size);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid = clone(run, task->stack + sizeof(task->stack), SHARED_MEMORY | SIGCHLD, task);
    if (pid < 0 && errno == EINVAL) /* qemu-user shares memory between threads only: copy it */
        pid = clone(run, task->stack + sizeof(task->stack), SIGCHLD, task);
    number = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        munmap(task, sizeof(*task));
        errno = number;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(pid);
}

static PyObject *
podwire_send_in_background(PyObject *self, PyObject *args)
{
    int socket, report;
    const char *request;
    Py_ssize_t size;

    if (!PyArg_ParseTuple(args, "iy#i", &socket, &request, &size, &report))
        return NULL;
    return start(send_request, socket, report, request, size, (struct timespec){0});
}

static PyObject *
podwire_close_in_background(PyObject *self, PyObject *args)
{
    int socket, ended, microseconds;

    if (!PyArg_ParseTuple(args, "iii", &socket, &ended, &microseconds))
        return NULL;
    if (microseconds < 0)
        return PyErr_Format(PyExc_ValueError, "not a duration: %d", microseconds);
    return start(close_late, socket, ended, "", 0,
                 (struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000});
}

PyDoc_STRVAR(send_in_background_doc,
             "send_in_background(socket, request, report) -> pid: start a process that sends `request` (bytes) and\n"
             "waits for the answer. It closes all descriptors but `socket` and `report`. Its exit status is the errno\n"
             "of the answer or of the failure; the other end of the pipe `report` is readable when it has ended.");

PyDoc_STRVAR(close_in_background_doc,
             "close_in_background(socket, ended, microseconds) -> pid: start a process that exits that long after the\n"
             "writing end of the pipe `ended` was closed. It closes all descriptors but `socket` and `ended`.");

PyMethodDef background_methods[] = {
    {"send_in_background", podwire_send_in_background, METH_VARARGS, send_in_background_doc},
    {"close_in_background", podwire_close_in_background, METH_VARARGS, close_in_background_doc},
    {NULL, NULL, 0, NULL},
};
