/* image_builder.c: the build-time half. Initialises Python, imports the application, and writes a file: Python's
 * memory, or which parts of it the verbs use (layout.c).
 *
 * One rule: that memory contains no data of the building machine (paths, times, directory order, process IDs, random
 * numbers), so that the same sources give the same bytes. So modules come from bundles (freeze.py), which are mapped
 * outside the heap, not from a search path.
 */
#include "image_builder.h"

#define Py_BUILD_CORE 1
#include "internal/pycore_interp.h"

#include "alloc.h"
#include "layout.h"
#include "share.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int image_ready;
PyObject *image_start, *image_environ;

/* The bounds of Python's writable sections, which libpython.py renamed; the linker defines these symbols. */
extern char __start_pydata[], __stop_pydata[], __start_pybss[], __stop_pybss[];

/* One module of a bundle: this header, the name with its NUL, the marshalled code. Matches freeze.py. */
typedef struct {
    unsigned name_size, code_size, is_package;
} Record;

#define MODULES_MAX 4096
static struct _frozen *modules;

static _Noreturn void die(const char *message)
{
    fprintf(stderr, "image builder: %s\n", message);
    _exit(1);
}

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        die(status.err_msg ? status.err_msg : "Python did not initialise");
}

static void check_python(int failed)
{
    if (failed) {
        PyErr_Print();
        die("Python code of the application or of the build failed");
    }
}

/* Adds the modules of one bundle to the table of frozen modules, which the import system searches first. */
static size_t load_bundle(const char *path, size_t count)
{
    struct stat info;
    int fd = open(path, O_RDONLY);
    const char *p, *end;

    if (fd < 0 || fstat(fd, &info) < 0)
        die(path);
    p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        die(path);
    close(fd);
    for (end = p + info.st_size; p < end; count++) {
        Record record;

        if (count == MODULES_MAX - 1)
            die("too many modules: raise MODULES_MAX");
        memcpy(&record, p, sizeof record);
        p += sizeof record;
        modules[count] = (struct _frozen){
            .name = p,
            .code = (const unsigned char *)p + record.name_size,
            .size = (int)record.code_size,
            .is_package = (int)record.is_package,
        };
        p += record.name_size + record.code_size;
    }
    return count;
}

static void load_bundles(int count, char **paths)
{
    size_t loaded = 0;

    modules = mmap(NULL, MODULES_MAX * sizeof *modules, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (modules == MAP_FAILED)
        die("no memory");
    for (int i = 0; i < count; i++)
        loaded = load_bundle(paths[i], loaded);
    PyImport_FrozenModules = modules;
}

/* Python allocates its stack of frames here, and would allocate pymalloc's arenas: the heap must contain them. */
static void *arena_allocate(void *Py_UNUSED(context), size_t n)
{
    return malloc(n);
}

static void arena_free(void *Py_UNUSED(context), void *p, size_t Py_UNUSED(n))
{
    free(p);
}

static void initialise_python(void)
{
    PyObjectArenaAllocator arenas = {NULL, arena_allocate, arena_free};
    PyPreConfig pre;
    PyConfig config;

    PyPreConfig_InitIsolatedConfig(&pre);
    pre.utf8_mode = 1;
    pre.allocator = PYMEM_ALLOCATOR_MALLOC; /* alloc.c replaces pymalloc */
    check(Py_PreInitialize(&pre));
    PyObject_SetArenaAllocator(&arenas);

    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.pathconfig_warnings = 0;
    config.write_bytecode = 0;
    config.optimization_level = 2; /* no docstrings, no asserts: no plugin uses them */
    config.code_debug_ranges = 0;  /* columns of a traceback mark a source line, and the image has no sources */
    config.parse_argv = 0;
    config.use_hash_seed = 1; /* a random seed in the file would not be secret */
    config.hash_seed = 0;
    /* SIGINT keeps its default action: runtimes stop a plugin with SIGTERM, and cni/skel.py handles that. */
    config.install_signal_handlers = 0;
    /* An empty search path; Python does not read the disk to compute one. */
    config.module_search_paths_set = 1;
    check(PyConfig_SetBytesString(&config, &config.program_name, "podwire"));
    check(PyConfig_SetBytesString(&config, &config.home, "/"));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

static PyObject *attribute_of(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name), *value;

    check_python(!module);
    value = PyObject_GetAttrString(module, name);
    check_python(!value);
    Py_DECREF(module);
    return value;
}

static void call_boot(const char *name)
{
    PyObject *function = attribute_of("_boot", name), *result = PyObject_CallNoArgs(function);

    check_python(!result);
    Py_DECREF(result);
    Py_DECREF(function);
}

static void import_application(void)
{
    image_start = attribute_of("_boot", "start");
    image_environ = attribute_of("posix", "environ");
    call_boot("prepare");
    share_end();
    layout_end(); /* the verbs use files and process IDs, so their allocations differ between runs */
    call_boot("complete");
    PyDict_Clear(image_environ);
}

/* Writes the name of a step and a newline, from the stack: system calls cannot read the image while it is watched. */
static void write_name(int fd, PyObject *name)
{
    char line[64];
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);

    check_python(!text);
    if (!size || size >= (Py_ssize_t)sizeof line || memchr(text, '\n', (size_t)size))
        die("the name of a scenario is not a line of 1 to 63 bytes");
    memcpy(line, text, (size_t)size);
    line[size] = '\n';
    if (write(fd, line, (size_t)size + 1) != size + 1)
        die("cannot write the names of the scenarios");
}

/* Runs the application's scenarios, and writes their names, an empty line, and which blocks of the image each of them
 * reads and writes. */
static _Noreturn void learn_layout(int fd)
{
    PyObject *steps, *step;
    size_t image_pages;

    heap_seal();
    image_pages = heap_pages_used;
    steps = PyObject_CallNoArgs(attribute_of("_boot", "run_scenarios"));
    check_python(!steps || !(step = PyIter_Next(steps))); /* the setup of the fake kernel, which is not recorded */
    if (!layout_watch(image_pages))
        die("cannot watch the heap");
    for (unsigned number = 0; step; number++) {
        write_name(fd, step);
        Py_DECREF(step); /* before layout_step(): the application does not use the name */
        if (!layout_step(number))
            die("more than 32 steps (VERSION and the scenarios): merge some, or widen the masks of layout.c and layout.py");
        step = PyIter_Next(steps);
    }
    check_python(!!PyErr_Occurred());
    if (write(fd, "\n", 1) != 1 || !layout_write(fd))
        die("cannot write the uses of blocks");
    _exit(0);
}

static int count_threads(void)
{
    int count = 0;

    for (PyThreadState *each = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); each;
         each = PyThreadState_Next(each))
        count++;
    return count;
}

/* Has a child process check the objects of the image, and write how many there are: it may allocate and import. */
static void check_objects(int output, int dump)
{
    int status;
    pid_t child = fork();

    if (child < 0)
        die("cannot start a process");
    if (!child) {
        PyObject *tracked, *problems;

        heap_seal(); /* from here on, large blocks may be allocated by mmap() */
        check_python(!PyObject_CallNoArgs(attribute_of("gc", "unfreeze"))); /* get_objects() omits frozen ones */
        tracked = PyObject_CallNoArgs(attribute_of("gc", "get_objects"));
        check_python(!tracked);
        problems = PyObject_CallFunction(attribute_of("_live_objects", "check"), "Oiii", tracked, count_threads(), output,
                                         dump);
        check_python(!problems);
        if (PyUnicode_GET_LENGTH(problems))
            die(PyUnicode_AsUTF8(problems));
        _exit(0); /* no finalisation: it would wait for threads */
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the check of the objects failed");
}

/* Wipes pointers that Python no longer uses: in the frames of functions that have returned, and in its free lists of
 * lists and dictionaries, behind their last entry. They can differ between builds. */
static void wipe_stale_pointers(void)
{
    PyThreadState *thread = PyThreadState_Get();

    memset(thread->datastack_top, 0, (size_t)((char *)thread->datastack_limit - (char *)thread->datastack_top));
#if PY_VERSION_HEX < 0x030D0000 /* 3.13 has no such arrays in the interpreter */
    struct _Py_list_state *lists = &thread->interp->list;
    struct _Py_dict_state *dicts = &thread->interp->dict_state;

    for (int i = lists->numfree; i < PyList_MAXFREELIST; i++)
        lists->free_list[i] = NULL;
    for (int i = dicts->numfree; i < PyDict_MAXFREELIST; i++)
        dicts->free_list[i] = NULL;
    for (int i = dicts->keys_numfree; i < PyDict_MAXFREELIST; i++)
        dicts->keys_free_list[i] = NULL;
#endif
}

static void write_part(int fd, const char *start, size_t size)
{
    unsigned long header[2] = {(unsigned long)start, size};

    if (write(fd, header, sizeof header) != sizeof header)
        die("cannot write the dump");
    while (size) {
        ssize_t written = write(fd, start, size);

        if (written <= 0)
            die("cannot write the dump");
        start += written;
        size -= (size_t)written;
    }
}

/* The linker redirects all calls of pthread_self() to this function (--wrap). While the image is built, a thread's
 * identity is a constant: the real one is a random address, on which the order of entries in sets depends. */
pthread_t __real_pthread_self(void);
pthread_t __wrap_pthread_self(void);

pthread_t __wrap_pthread_self(void)
{
    return image_ready ? __real_pthread_self() : 1;
}

/* So is its ID: threading stores it, and Python allocates no memory for the integers up to 256. */
unsigned long __real_PyThread_get_thread_native_id(void);
unsigned long __wrap_PyThread_get_thread_native_id(void);

unsigned long __wrap_PyThread_get_thread_native_id(void)
{
    return image_ready ? __real_PyThread_get_thread_native_id() : 1;
}

int image_builder_main(int argc, char **argv)
{
    int fd, objects_fd;
    int learning = argc > 1 && strcmp(argv[1], "learn") == 0;
    static char *environment[] = {"PATH=/usr/bin:/bin", "TZ=UTC", NULL};

    if (argc < 6)
        die("usage: image-builder learn|dump FILE OBJECTS GROUPS BUNDLE...");
    environ = environment; /* Python copies it: one size in every build */
    heap_begin_image();
    /* The signal module remembers the actions at its import: set those of a start. */
    for (int number = 1; number < 32; number++)
        signal(number, SIG_DFL); /* the build may ignore some, such as SIGHUP under nohup */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    objects_fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || objects_fd < 0)
        die("cannot create the files");
    if (!layout_load(argv[4]) || (learning && !layout_learn()))
        die("cannot use the layout");
    load_bundles(argc - 5, argv + 5);
    if (chdir("/") < 0) /* Python stores the working directory, which would change the order of allocations */
        die("cannot enter /");
    if (!share_begin())
        die("no memory");
    initialise_python();
    import_application();
    if (learning)
        learn_layout(fd);
    check_objects(objects_fd, fd);
    PyImport_FrozenModules = NULL; /* the bundles are not part of the image */
    modules = NULL;
    layout_forget();
    wipe_stale_pointers();
    forget_process();
    heap_seal();
    image_ready = 1;
    write_part(fd, __start_pydata, (size_t)(__stop_pydata - __start_pydata));
    write_part(fd, __start_pybss, (size_t)(__stop_pybss - __start_pybss));
    write_part(fd, heap + HEAP_LIBC_PAGES * HEAP_PAGE, (heap_pages_used - HEAP_LIBC_PAGES) * HEAP_PAGE);
    _exit(0);
}
