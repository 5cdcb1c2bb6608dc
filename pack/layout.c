/* layout.c: which blocks of the image lie together, and how that is learned.
 *
 * Python counts references inside the objects, so that merely using an object copies its page. What the verbs use
 * should therefore lie together, and only a run can tell what that is. So the seed runs twice. The first run imports
 * everything, protects the heap and plays the verbs: each use of a block is caught, noted, and let through by executing
 * that one instruction with the page open. The second run knows by that which of the blocks it allocates will be written
 * to, and which only read, puts them on pages of their own, and makes the image.
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

#define CLASSES 64
#define GRANULE 16ul /* blocks begin at multiples of it */
#define GRANULES (HEAP_SIZE / GRANULE)
#define OPEN_MAX 4      /* pages one instruction uses, and more than that */

/* A block used more often than this in one step leaves its page open until LINGERING further faults of its kind:
 * learning takes half of the time and misses one block in a hundred. */
#define OFTEN 64
#define LINGERING 8

static uint32_t allocated[CLASSES];
static int ended;

/* What an earlier run learned: for each class, how many blocks it knows and the group of each. */
static uint32_t known[CLASSES];
static const unsigned char *groups_of[CLASSES];

/* What this run learns, by granule. Shared, as a verb may fork; but not the faults, which would depend on how far the
 * one is when the other runs. */
static uint32_t *block_at; /* class and number within the class, from 1 */
#define NUMBER_BITS 26
static unsigned char *written_at, *read_at; /* bits are steps */
static unsigned char *faults_at;            /* in this step and process, up to OFTEN */

/* For each class three bytes for each block: pages (of a slot: 1), steps that write to it,
 * steps that read it. The bytes of a kind lie together. */
static unsigned char *learned[CLASSES];

static unsigned char step_bit;
static size_t watched_pages;
static unsigned char open_for[PAGES]; /* PROT_NONE, PROT_READ, or both that and PROT_WRITE */
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

void layout_placed(const void *block, unsigned class)
{
    if (block_at)
        block_at[granule_of(block)] = ended ? 0 : class << NUMBER_BITS | allocated[class];
}

void layout_end(void)
{
    ended = 1;
}

int layout_load(const char *path)
{
    struct stat info;
    const unsigned char *p;
    uint32_t pages[GROUPS];
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
    memcpy(pages, p, sizeof pages);
    pages_divide(pages);
    p += sizeof pages;
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
    block_at = map(GRANULES * sizeof *block_at, MAP_PRIVATE);
    written_at = map(GRANULES, MAP_SHARED);
    read_at = map(GRANULES, MAP_SHARED);
    faults_at = map(GRANULES, MAP_PRIVATE);
    return block_at && written_at && read_at && faults_at && step_prepare();
}

/* The first of the bytes about the block at granule i. */
static unsigned char *learned_of(size_t i)
{
    return learned[block_at[i] >> NUMBER_BITS] + (block_at[i] & ((1u << NUMBER_BITS) - 1)) - 1;
}

static void open_page(size_t page, int protection)
{
    mprotect(page_address(page), PAGE, protection);
    open_for[page] = (unsigned char)protection;
}

/* Leaves the page open until as many others were left open. */
static void linger(size_t page)
{
    size_t *oldest;

    for (unsigned i = 0; i < LINGERING; i++)
        if (lingering[i] == page)
            return;
    oldest = &lingering[lingering_next++ % LINGERING];
    if (*oldest)
        open_page(*oldest, PROT_NONE);
    *oldest = page;
}

/* The granule at which the block begins that holds this address; a large block's page stays open. */
static size_t block_of(const char *address, int *large)
{
    size_t page = page_of(address), size;

    *large = page_kind[page] == PAGE_FREE || page_kind[page] >= RUN_USED;
    if (!*large) {
        size = slot_size(page_kind[page]);
        return granule_of((char *)page_address(page) + (size_t)(address - heap) % PAGE / size * size);
    }
    while (page_kind[page] != RUN_USED && page > HEAP_LIBC_PAGES)
        page--;
    return granule_of(page_address(page));
}

/* SIGSEGV, the use of a protected page: notes the block and lets the instruction be executed again. */
static void on_use(int number, siginfo_t *info, void *context)
{
    char *address = info->si_addr;
    size_t page = page_of(address), block;
    int large, was_open, writes;

    if (!in_heap(address) || page >= watched_pages || open_count == OPEN_MAX) {
        signal(number, SIG_DFL); /* a true fault: executed again, it ends the process */
        return;
    }
    was_open = open_for[page];
    writes = was_open || step_writes(context);
    block = block_of(address, &large);
    *(writes ? &written_at[block] : &read_at[block]) |= step_bit;
    open_page(page, writes ? PROT_READ | PROT_WRITE : PROT_READ);
    if (large)
        return;
    if (faults_at[block] == OFTEN) {
        linger(page);
        return;
    }
    faults_at[block]++;
    if (!was_open)
        open_pages[open_count++] = page;
    step_begin(context);
}

/* SIGTRAP: the instruction has been executed. */
static void on_trap(int number, siginfo_t *info, void *context)
{
    while (open_count)
        open_page(open_pages[--open_count], PROT_NONE);
    step_end(context);
}

int layout_watch(size_t pages)
{
    struct sigaction use = {.sa_sigaction = on_use, .sa_flags = SA_SIGINFO};
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

    for (unsigned class = 0; class < CLASSES; class++)
        if (allocated[class] && !(learned[class] = map(3ul * allocated[class], MAP_PRIVATE)))
            return 0;
    for (size_t i = 0; i < pages * (PAGE / GRANULE); i++)
        if (block_at[i]) {
            uint32_t length = block_at[i] >> NUMBER_BITS == LAYOUT_RUN ? run_length[i * GRANULE / PAGE] : 1;

            *learned_of(i) = length < 255 ? (unsigned char)length : 255;
        }
    sigfillset(&use.sa_mask);
    sigfillset(&trap.sa_mask);
    watched_pages = pages;
    return sigaction(SIGSEGV, &use, NULL) == 0 && sigaction(SIGTRAP, &trap, NULL) == 0;
}

void layout_step(unsigned step)
{
    step_bit = (unsigned char)(1u << step);
    memset(faults_at, 0, watched_pages * (PAGE / GRANULE));
    memset(open_for, PROT_NONE, sizeof open_for);
    memset(lingering, 0, sizeof lingering);
    mprotect(page_address(HEAP_LIBC_PAGES), (watched_pages - HEAP_LIBC_PAGES) * PAGE, PROT_NONE);
}

int layout_write(int fd)
{
    mprotect(heap, watched_pages * PAGE, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < watched_pages * (PAGE / GRANULE); i++)
        if (block_at[i]) {
            uint32_t count = allocated[block_at[i] >> NUMBER_BITS];

            learned_of(i)[count] = written_at[i];
            learned_of(i)[2 * count] = read_at[i];
        }
    for (unsigned class = 0; class < CLASSES; class++) {
        uint32_t header[] = {allocated[class], class == LAYOUT_RUN || !allocated[class] ? 0 : (uint32_t)slot_size(class)};
        ssize_t size = 3 * (ssize_t)allocated[class];

        if (write(fd, header, sizeof header) != sizeof header || write(fd, learned[class], (size_t)size) != size)
            return 0;
    }
    return 1;
}
