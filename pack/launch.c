/* launch.c: main(), and everything between the kernel's exec and the application's entry().
 *
 * When main() begins, Python's memory is as image_builder.c dumped it, and libc is newly initialised.
 *
 * One rule: the state of a process (thread identity, descriptors, signals, environment, arguments) is set here or in
 * boot.py at every start, and reset in forget_process() before the dump.
 */
#define Py_BUILD_CORE 1
#include "image_builder.h"

#include "alloc.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_pystate.h"
#include "internal/pycore_runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

/* The linker puts code that compilers found hot (Debian builds Python by a profile) after main() and before _start(). */
int main(int argc, char **argv);
void _start(void);
extern char __executable_start[], __start_pydata[]; /* the linker's: the file's first byte, Python's data */

/* How many bytes after the image VERSION writes to, and ADD and most verbs do (measured). */
#define FRESH_BYTES (128ul << 10)
#define FRESH_BYTES_OF_VERBS (192ul << 10)

/* The default read-ahead of a disk: MADV_WILLNEED reads at most that much in one call. */
#define READ_AHEAD_BYTES (128l << 10)

extern char **environ;

/* The keys of a thread's Python state: libc stores it for each thread, so the image does not contain it. */
#if PY_VERSION_HEX >= 0x030C0000 /* which also has a thread-local variable, _Py_tss_tstate */
static Py_tss_t *const thread_keys[] = {&_PyRuntime.autoTSSkey, &_PyRuntime.trashTSSkey};
#else
static Py_tss_t *const thread_keys[] = {&_PyRuntime.gilstate.autoTSSkey};
#endif
#define THREAD_KEYS (sizeof thread_keys / sizeof *thread_keys)

/* A file opened by the application must not become descriptor 0, 1 or 2, since other code would use it as a standard
 * stream. Like Go, opens /dev/null for closed ones; if there is none, a descriptor that fails every read and write.
 * Standard output is opened for reading only: each write fails, and so does an ADD without a reader of its result. */
static void occupy_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR) < 0
            && open("/", O_PATH) < 0)
            _exit(1);
}

/* The caller of a plugin chooses, by CNI_PATH and PATH, which programs the plugin runs: a setuid plugin would give its
 * privileges to any user. (AT_SECURE is no test for this: SELinux and AppArmor set it when the domain changes.) */
static void refuse_setuid(void)
{
    static const char text[] = "podwire: setuid and setgid are not supported\n";

    if (getauxval(AT_UID) == getauxval(AT_EUID) && getauxval(AT_GID) == getauxval(AT_EGID))
        return;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

/* As Python's initialisation does, so that a write to a closed pipe or past a limit is an OSError. Ignored signals
 * survive exec, so process/child.py resets them when it starts another program. */
static void ignore_signals(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* The part of PyOS_AfterFork_Child() that a start needs. The image has one thread and no locked locks. The at-fork
 * hooks are not run: they would copy many pages, most for `threading`; boot.py renews the state that needs it. */
static void adopt_thread(void)
{
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Main());

    thread->thread_id = PyThread_get_thread_ident();
    thread->native_thread_id = PyThread_get_thread_native_id();
    _PyRuntime.main_thread = thread->thread_id;
    for (size_t i = 0; i < THREAD_KEYS; i++)
        if (PyThread_tss_create(thread_keys[i]) != 0)
            Py_FatalError("no thread-specific storage");
    if (PyThread_tss_set(thread_keys[0], thread) != 0)
        Py_FatalError("no thread-specific storage");
#if PY_VERSION_HEX >= 0x030C0000
    _Py_tss_tstate = thread;
#endif
    pthread_atfork(heap_lock, heap_unlock, heap_unlock);
}

void forget_process(void)
{
    PyThreadState *thread = PyThreadState_Get();

    thread->thread_id = 0;
    thread->native_thread_id = 0;
    _PyRuntime.main_thread = 0;
    for (size_t i = 0; i < THREAD_KEYS; i++)
        PyThread_tss_delete(thread_keys[i]);
}

/* Like Python, ignores an entry without '=' or without a name, and uses the first of two with the same name. */
static int fill_environ(void)
{
    for (char **entry = environ; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        PyObject *name, *value;

        if (!equals || equals == *entry)
            continue;
        name = PyBytes_FromStringAndSize(*entry, equals - *entry);
        value = PyBytes_FromString(equals + 1);
        if (!name || !value || !PyDict_SetDefault(image_environ, name, value))
            return -1;
        Py_DECREF(name);
        Py_DECREF(value);
    }
    return 0;
}

/* A failure only costs time. */
static void advise(const void *start, const void *end, int advice)
{
    uintptr_t page = (uintptr_t)start & -getauxval(AT_PAGESZ); /* the kernel's: on ARM up to 64 KiB */

    madvise((void *)page, (uintptr_t)end - page, advice);
}

static void prefault(const void *start, size_t size)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    advise(start, (const char *)start + size, MADV_POPULATE_WRITE);
#endif
}

/* Populates the pages that a process will write to, in the image and after it: one call is faster than many faults. */
static void prefault_memory(void)
{
    const char *command = getenv("CNI_COMMAND");
    int verb = command && strcmp(command, "VERSION") != 0;

    prefault(heap + HEAP_PACKED_PAGE * HEAP_PAGE, (verb ? heap_warm_pages : heap_hot_pages) * HEAP_PAGE);
    prefault(heap + heap_pages_used * HEAP_PAGE, verb ? FRESH_BYTES_OF_VERBS : FRESH_BYTES);
    if (verb)
        prefault(&_PyRuntime, sizeof _PyRuntime); /* the cache of look-ups */
}

/* Starts to read a part of the file, without waiting for it. */
static void will_need(const char *start, const char *end)
{
    for (; start < end; start += READ_AHEAD_BYTES)
        advise(start, end - start > READ_AHEAD_BYTES ? start + READ_AHEAD_BYTES : end, MADV_WILLNEED);
}

/* Reads the parts of the file that a verb uses, if they are not in the page cache: two ranges, in large requests, instead
 * of a hundred page faults. MADV_RANDOM stops the kernel from reading more around each further fault: a disk's read-ahead
 * may be megabytes. The file counts as cached if its last page is, which only this function and podwire's own commands
 * read; then the cost is one system call. Only with pages of 4 KiB: with larger ones mincore() fails. */
static void read_ahead(void)
{
    char *end = heap + heap_image_pages * HEAP_PAGE, *last = end - HEAP_PAGE;
    unsigned char cached;

    if (mincore(last, HEAP_PAGE, &cached) < 0 || cached & 1)
        return;
    advise(__executable_start, end, MADV_RANDOM);
    will_need(__start_pydata, heap + (HEAP_PACKED_PAGE + heap_common_pages) * HEAP_PAGE);
    will_need((void *)main, (void *)_start);
    will_need(last, end);
}

static int fill_argv(int argc, char **argv)
{
    PyObject *list = PyList_New(0);
    int failed = !list;

    for (int i = 0; i < argc && !failed; i++) {
        PyObject *argument = PyUnicode_DecodeFSDefault(argv[i]);

        failed = !argument || PyList_Append(list, argument) < 0;
        Py_XDECREF(argument);
    }
    failed = failed || PySys_SetObject("argv", list) < 0;
    Py_XDECREF(list);
    return failed ? -1 : 0;
}

int main(int argc, char **argv)
{
    PyObject *status;

    if (!image_ready)
        return image_builder_main(argc, argv);
    occupy_standard_fds();
    refuse_setuid();
    ignore_signals();
    if (getenv("CNI_COMMAND")) /* the tool's commands use more of the file */
        read_ahead();
    prefault_memory();
    adopt_thread();
    if (fill_environ() < 0 || fill_argv(argc, argv) < 0)
        Py_FatalError("no memory for the environment");
    status = PyObject_CallNoArgs(image_start);
    if (!status) { /* boot.start() handles all exceptions; this is a failure to report one */
        PyErr_Print();
        _exit(1);
    }
    _exit((int)PyLong_AsLong(status)); /* no finalisation: the application keeps no state but the process */
}
