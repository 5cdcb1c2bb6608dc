/* layout.c: groups blocks of the image by their use, and learns that use.
 *
 * Python stores reference counts in objects, so each use of an object copies its page. The objects that verbs use
 * should be on common pages, and only running the verbs shows which these are. So the image builder runs twice. The
 * first run imports everything, protects the heap and runs the verbs: each use of a block is a fault, which the handler
 * records; then the processor executes that one instruction with the page accessible. The second run knows which of its
 * blocks verbs will write to or read, allocates these on separate pages, and writes the image.
 *
 * One rule: a block is identified by its class and its number within the class, so up to layout_end() the second run
 * must allocate as the first did. Where it does not (sets of addresses have another order), the layout is worse, but
 * not wrong.
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
#define OPEN_MAX 4 /* more pages than one instruction uses */

/* A block used more often than this in one step leaves its page open until LINGERING more such pages were left open:
 * this takes a quarter of the time and misses one block in twenty. All steps include the first one, which is short. */
#define OFTEN 16
#define OFTEN_AT_FIRST 255
#define LINGERING 16

static uint32_t allocated[CLASSES];
static int ended;

/* The file of groups: for each class, the number of blocks and the group of each, in two bytes. */
static uint32_t known[CLASSES];
static const unsigned char *groups_of[CLASSES];

/* The unused memory of each group; group 0 has none. */
typedef struct {
    char *next, *end;
} Room;

static Room *rooms;

/* The uses that this run records, by granule. */
static uint32_t *number_at;            /* the block's, within its class, from 1 */
static uint32_t *written_at, *read_at; /* a bit for each step */
static unsigned char *faults_at;       /* in this step, up to OFTEN */

#define STEPS 32u /* the bits of these masks */
static uint32_t step_bit;
static size_t watched_pages;
static unsigned char open_for[PAGES]; /* PROT_NONE, PROT_READ, or PROT_READ | PROT_WRITE */
static size_t open_pages[OPEN_MAX], lingering[LINGERING];
static unsigned open_count, lingering_next;

static void *map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static size_t granule_of(const void *block)
{
    return (size_t)((const char *)block - heap) / GRANULE;
}

static void open_page(size_t page, int protection)
{
    mprotect(page_address(page), PAGE, protection);
    open_for[page] = (unsigned char)protection;
}

/* ---- allocating by group ---- */

void *layout_address(unsigned class, size_t size)
{
    uint32_t number;
    uint16_t group;
    Room *room;

    if (ended)
        return NULL;
    number = allocated[class]++;
    if (number >= known[class])
        return NULL;
    memcpy(&group, groups_of[class] + number * sizeof group, sizeof group);
    room = &rooms[group];
    if ((size_t)(room->end - room->next) < size)
        return NULL;
    room->next += size;
    return room->next - size;
}

void layout_allocated(const void *block, unsigned class)
{
    if (number_at && heap_sealed != WATCHED)
        number_at[granule_of(block)] = ended ? 0 : allocated[class];
}

int layout_watches(const void *block)
{
    return heap_sealed == WATCHED && page_of(block) < watched_pages;
}

void layout_end(void)
{
    ended = 1;
}

/* Reserves memory for the groups: the file begins with their number and sizes. Returns the position after them. */
static const unsigned char *divide(const unsigned char *file)
{
    const uint32_t *sizes = (const uint32_t *)file + 1, count = sizes[-1];
    size_t size = 0;
    char *next;

    for (uint32_t group = 0; group < count; group++)
        size += sizes[group];
    rooms = map(count * sizeof *rooms);
    next = heap_pack(size, sizes[1], sizes[1] + sizes[2], sizes[1] + sizes[2] + sizes[3] + sizes[4]);
    if (!rooms || !next)
        return NULL;
    for (uint32_t group = 0; group < count; group++) {
        rooms[group] = (Room){next, next + sizes[group]};
        next += sizes[group];
    }
    return file + (1 + count) * sizeof *sizes;
}

int layout_load(const char *path)
{
    struct stat info;
    const unsigned char *p;
    int fd;

    /* Blocks of libc are not counted: before main() it stores the name of the program's directory, whose length
     * determines the class. */
    memset(allocated, 0, sizeof allocated);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) < 0)
        return 0;
    p = info.st_size ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (!p)
        return 1;
    if (p == MAP_FAILED || !(p = divide(p)))
        return 0;
    for (unsigned class = 0; class < CLASSES; class++) {
        memcpy(&known[class], p, sizeof known[class]);
        groups_of[class] = p + sizeof known[class];
        p = groups_of[class] + known[class] * sizeof(uint16_t);
    }
    return 1;
}

void layout_forget(void)
{
    memset(allocated, 0, sizeof allocated);
    memset(known, 0, sizeof known);
    memset(groups_of, 0, sizeof groups_of);
    rooms = NULL;
    ended = 0;
}

/* ---- learning ---- */

int layout_learn(void)
{
    number_at = map(GRANULES * sizeof *number_at);
    written_at = map(GRANULES * sizeof *written_at);
    read_at = map(GRANULES * sizeof *read_at);
    faults_at = map(GRANULES);
    return number_at && written_at && read_at && faults_at && step_prepare();
}

/* Leaves the page open until LINGERING others were left open. */
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

/* SIGSEGV, the use of a protected page: records the block and has the instruction executed again. */
static void on_use(int number, siginfo_t *info, void *context)
{
    char *address = info->si_addr;
    size_t page = page_of(address), block, size;
    int was_open, writes;

    if (!in_heap(address) || page >= watched_pages || open_count == OPEN_MAX) {
        signal(number, SIG_DFL); /* a real fault: executed again, it ends the process */
        return;
    }
    was_open = open_for[page];
    writes = was_open || step_writes(context);
    open_page(page, writes ? PROT_READ | PROT_WRITE : PROT_READ);
    if (page_kind[page] == PAGE_FREE || page_kind[page] >= RUN_USED)
        return; /* large blocks are not grouped: the page stays open */
    size = slot_size(page_kind[page]);
    block = granule_of((char *)page_address(page) + (size_t)(address - heap) % PAGE / size * size);
    *(writes ? &written_at[block] : &read_at[block]) |= step_bit;
    if (faults_at[block] >= (step_bit == 1 ? OFTEN_AT_FIRST : OFTEN)) {
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

    sigfillset(&use.sa_mask);
    sigfillset(&trap.sa_mask);
    watched_pages = pages;
    heap_sealed = WATCHED;
    return sigaction(SIGSEGV, &use, NULL) == 0 && sigaction(SIGTRAP, &trap, NULL) == 0;
}

int layout_step(unsigned step)
{
    if (step >= STEPS)
        return 0;
    step_bit = 1u << step;
    memset(faults_at, 0, watched_pages * (PAGE / GRANULE));
    memset(open_for, PROT_NONE, sizeof open_for);
    memset(lingering, 0, sizeof lingering);
    mprotect(page_address(HEAP_LIBC_PAGES), (watched_pages - HEAP_LIBC_PAGES) * PAGE, PROT_NONE);
    return 1;
}

/* Writes the recorded steps of each block of a class. */
static int write_steps(int fd, unsigned class, const uint32_t *steps_at)
{
    size_t size = allocated[class] * sizeof(uint32_t);
    uint32_t *steps = map(size + 1);

    for (size_t i = 0; steps && i < watched_pages * (PAGE / GRANULE); i++)
        if (number_at[i] && class != PAGE_FREE && page_kind[i * GRANULE / PAGE] == class)
            steps[number_at[i] - 1] = steps_at[i];
    return steps && write(fd, steps, size) == (ssize_t)size && munmap(steps, size + 1) == 0;
}

int layout_write(int fd)
{
    mprotect(heap, watched_pages * PAGE, PROT_READ | PROT_WRITE);
    for (unsigned class = 0; class < CLASSES; class++) {
        uint32_t header[] = {allocated[class], allocated[class] ? (uint32_t)slot_size(class) : 0};

        if (write(fd, header, sizeof header) != sizeof header)
            return 0;
        if (!write_steps(fd, class, written_at) || !write_steps(fd, class, read_at))
            return 0;
    }
    return 1;
}
