/* heap.c: a program with the executable's malloc, first as at build time, then as at run time; prints failures.
 *
 * One rule: it replaces layout.c, and packs all blocks that are allocated while `packing` is set.
 */
#include "alloc.h"
#include "layout.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES 9
#define ROOM (1ul << 16)

static const size_t sizes[SIZES] = {1, 16, 17, 64, 128, 256, 500, 512, 2048};
static char *room, *next;
static int packing, failures;

void *layout_address(unsigned class, size_t size)
{
    if (!packing || next + size > room + ROOM)
        return NULL;
    next += size;
    return next - size;
}

void layout_allocated(const void *block, unsigned class)
{
}

int layout_watches(const void *block)
{
    return 0;
}

static void expect(int passed, const char *message, size_t size)
{
    failures += !passed;
    if (!passed)
        printf("%s: %zu bytes\n", message, size);
}

/* Returns whether all bytes of the block equal `byte`. */
static int is_filled(const char *block, size_t size, char byte)
{
    while (size && block[size - 1] == byte)
        size--;
    return size == 0;
}

static void use_packed(char *block, size_t size)
{
    char *resized;

    expect(block >= room && block < next && malloc_usable_size(block) >= size, "is packed", size);
    expect(is_filled(block, size, 'p'), "is not overwritten by the next block", size);
    resized = realloc(block, size + 5000);
    expect(is_filled(resized, size, 'p'), "keeps its bytes when it grows", size);
    resized = realloc(resized, size);
    expect(is_filled(resized, size, 'p'), "keeps its bytes when it shrinks", size);
    free(resized);
}

/* Freed packed blocks do not have an alignment of more than 16 bytes, so malloc must not reuse them here. */
static void align(size_t alignment, size_t size)
{
    char *blocks[40], *block;

    for (int i = 0; i < 40; i++) {
        blocks[i] = block = aligned_alloc(alignment, size);
        expect(block && (uintptr_t)block % alignment == 0, "is aligned", size);
        expect(malloc_usable_size(block) >= size, "is large enough", size);
        memset(block, 'a', size);
    }
    for (int i = 0; i < 40; i++) {
        expect(is_filled(blocks[i], size, 'a'), "is not overwritten by another block", size);
        free(blocks[i]);
    }
}

int main(void)
{
    char *blocks[SIZES][2];

    heap_begin_image();
    next = room = heap_pack(ROOM, 0, 0, 0);
    packing = 1;
    for (int i = 0; i < SIZES; i++)
        for (int twice = 0; twice < 2; twice++)
            blocks[i][twice] = memset(malloc(sizes[i]), 'p', sizes[i]);
    heap_seal();
    for (int i = 0; i < SIZES; i++)
        for (int twice = 0; twice < 2; twice++)
            use_packed(blocks[i][twice], sizes[i]);
    for (int i = 0; i < SIZES; i++) {
        char *again = calloc(1, sizes[i]);

        expect(is_filled(again, sizes[i], 0), "is cleared", sizes[i]);
        free(again);
    }
    for (size_t alignment = 32; alignment <= 4096; alignment *= 2)
        for (int i = 0; i < SIZES; i++)
            align(alignment, sizes[i]);
    align(1 << 16, 100);
    align(64, 1 << 20);
    return failures != 0;
}
