/* layout.c: which blocks of the image lie together, and how that is learned.
 *
 * Python counts references inside the objects, so that merely using an object copies its page. What the verbs use
 * should therefore lie together, and only a run can tell what that is. So the seed runs twice. The first run imports
 * everything, write-protects the heap and plays the verbs: each write to a block is caught, noted, and let through by
 * executing that one instruction with the page writable. The second run knows by that which of the blocks it allocates
 * will be written to, puts them on pages of their own, and makes the image.
 *
 * One rule: a block is known by its class and its number within the class, so up to layout_end() the second run must
 * allocate as the first did. Where it does not (a set of addresses has another order), a block lies less well, no more.
 */
#define _GNU_SOURCE
#include "layout.h"
#include "pages.h"
#include "stepping.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASSES (CLASS_MASK + 1)
#define GRANULE 16ul /* blocks begin at multiples of it */
#define GRANULES (HEAP_SIZE / GRANULE)
#define OPEN_MAX 4      /* pages one instruction writes to, and more than that */

/* A block written to more often than this in one step keeps its page open until LINGERING further faults of its kind:
 * learning takes a quarter of the time and misses one block in a hundred. */
#define OFTEN 32
#define LINGERING 2

static uint32_t allocated[CLASSES];
static int ended;

/* What an earlier run learned: for each class, how many blocks it knows and the group of each. */
static uint32_t known[CLASSES];
static const unsigned char *groups_of[CLASSES];

/* What this run learns, by granule. Shared, as a verb may fork; but not the faults, which would depend on how far the
 * one is when the other runs. */
static uint32_t *number_at; /* within the class, from 1 */
static unsigned char *steps_at;
static unsigned char *faults_at; /* in this step and process, up to OFTEN */

static unsigned char step_bit;
static size_t watched_pages;
static size_t open_pages[OPEN_MAX], lingering[LINGERING];
static unsigned open_count, lingering_next;

static void *map(size_t size, int sharing)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static size_t granule_of(const void *block)
{
    return (size_t)((const char *)block - heap) / GRANULE;
}

/* ---- placing ---- */

unsigned layout_group(unsigned class)
{
    uint32_t number;

    if (ended)
        return 0;
    number = allocated[class]++;
    return number < known[class] ? groups_of[class][number] : 0;
}

void layout_placed(const void *block)
{
    if (number_at)
        number_at[granule_of(block)] = ended ? 0 : allocated[page_kind[page_of(block)] & CLASS_MASK];
}

void layout_end(void)
{
    ended = 1;
}

int layout_load(const char *path)
{
    struct stat info;
    const unsigned char *p;
    int fd;

    /* libc's own blocks do not count: before main() it keeps the name of the program's directory, whose length decides
     * the class. */
    memset(allocated, 0, sizeof allocated);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) < 0)
        return 0;
    if (!info.st_size)
        return 1;
    p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return 0;
    for (unsigned class = 0; class < CLASSES; class++) {
        memcpy(&known[class], p, sizeof known[class]);
        groups_of[class] = p + sizeof known[class];
        p = groups_of[class] + known[class];
    }
    return 1;
}

void layout_forget(void)
{
    memset(allocated, 0, sizeof allocated);
    memset(known, 0, sizeof known);
    memset(groups_of, 0, sizeof groups_of);
    ended = 0;
}

/* ---- learning ---- */

int layout_learn(void)
{
    number_at = map(GRANULES * sizeof *number_at, MAP_SHARED);
    steps_at = map(GRANULES, MAP_SHARED);
    faults_at = map(GRANULES, MAP_PRIVATE);
    return number_at && steps_at && faults_at && step_prepare();
}

static void protect(size_t page, int protection)
{
    mprotect(page_address(page), PAGE, protection);
}

/* Leaves the page open until as many others were left open. */
static void linger(size_t page)
{
    size_t *oldest = &lingering[lingering_next++ % LINGERING];

    if (*oldest)
        protect(*oldest, PROT_READ);
    *oldest = page;
}

/* SIGSEGV, a write to a protected page: notes the block and lets the instruction be executed again. */
static void on_write(int number, siginfo_t *info, void *context)
{
    char *address = info->si_addr;
    size_t page = page_of(address), block, size;

    if (!in_heap(address) || page >= watched_pages || open_count == OPEN_MAX) {
        signal(number, SIG_DFL); /* a true fault: executed again, it ends the process */
        return;
    }
    protect(page, PROT_READ | PROT_WRITE);
    if (page_kind[page] == PAGE_FREE || page_kind[page] >= RUN_USED)
        return; /* large blocks lie where they lie: the page stays open */
    size = slot_size(page_kind[page] & CLASS_MASK);
    block = granule_of((char *)page_address(page) + (size_t)(address - heap) % PAGE / size * size);
    steps_at[block] |= step_bit;
    if (faults_at[block] == OFTEN) {
        linger(page);
        return;
    }
    faults_at[block]++;
    open_pages[open_count++] = page;
    step_begin(context);
}

/* SIGTRAP: the instruction has been executed. */
static void on_trap(int number, siginfo_t *info, void *context)
{
    while (open_count)
        protect(open_pages[--open_count], PROT_READ);
    step_end(context);
}

int layout_watch(size_t pages)
{
    struct sigaction write = {.sa_sigaction = on_write, .sa_flags = SA_SIGINFO};
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

    sigfillset(&write.sa_mask);
    sigfillset(&trap.sa_mask);
    watched_pages = pages;
    if (sigaction(SIGSEGV, &write, NULL) < 0 || sigaction(SIGTRAP, &trap, NULL) < 0)
        return 0;
    return mprotect(page_address(HEAP_LIBC_PAGES), (pages - HEAP_LIBC_PAGES) * PAGE, PROT_READ) == 0;
}

void layout_step(unsigned step)
{
    step_bit = (unsigned char)(1u << step);
    memset(faults_at, 0, watched_pages * (PAGE / GRANULE));
}

int layout_write(int fd)
{
    unsigned char *steps[CLASSES] = {0};

    mprotect(heap, watched_pages * PAGE, PROT_READ | PROT_WRITE);
    for (unsigned class = 0; class < CLASSES; class++)
        if (allocated[class] && !(steps[class] = map(allocated[class], MAP_PRIVATE)))
            return 0;
    for (size_t i = 0; i < watched_pages * (PAGE / GRANULE); i++)
        if (steps_at[i] && number_at[i])
            steps[page_kind[i * GRANULE / PAGE] & CLASS_MASK][number_at[i] - 1] = steps_at[i];
    for (unsigned class = 0; class < CLASSES; class++) {
        if (write(fd, &allocated[class], sizeof allocated[class]) != sizeof allocated[class])
            return 0;
        if (write(fd, steps[class], allocated[class]) != (ssize_t)allocated[class])
            return 0;
    }
    return 1;
}
