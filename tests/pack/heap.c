/* heap.c: a program with the executable's own malloc, as it is built and then started; says what is wrong.
 *
 * One rule: it takes the place of layout.c, and packs whatever is allocated while it is `packing`.
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

static void expect(int right, const char *what, size_t size)
{
    failures += !right;
    if (!right)
        printf("%s: %zu bytes\n", what, size);
}

/* Whether all bytes of the block are this one. */
static int is_filled(const char *block, size_t size, char byte)
{
    while (size && block[size - 1] == byte)
        size--;
    return size == 0;
}

static void use_packed(char *block, size_t size)
{
    char *more;

    expect(block >= room && block < next && malloc_usable_size(block) >= size, "packed", size);
    expect(is_filled(block, size, 'p'), "the next block lies in it", size);
    more = realloc(block, size + 5000);
    expect(is_filled(more, size, 'p'), "made larger", size);
    more = realloc(more, size);
    expect(is_filled(more, size, 'p'), "made smaller", size);
    free(more);
}

/* What was freed is packed and does not begin where more than 16 bytes' alignment demands it. */
static void align(size_t alignment, size_t size)
{
    char *blocks[40], *block;

    for (int i = 0; i < 40; i++) {
        blocks[i] = block = aligned_alloc(alignment, size);
        expect(block && (uintptr_t)block % alignment == 0, "aligned", size);
        expect(malloc_usable_size(block) >= size, "as large as asked for", size);
        memset(block, 'a', size);
    }
    for (int i = 0; i < 40; i++) {
        expect(is_filled(blocks[i], size, 'a'), "another block lies in it", size);
        free(blocks[i]);
    }
}

int main(void)
{
    char *blocks[SIZES][2];

    heap_begin_image();
    next = room = heap_pack(ROOM, 0, 0);
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

        expect(is_filled(again, sizes[i], 0), "cleared", sizes[i]);
        free(again);
    }
    for (size_t alignment = 32; alignment <= 4096; alignment *= 2)
        for (int i = 0; i < SIZES; i++)
            align(alignment, sizes[i]);
    align(1 << 16, 100);
    align(64, 1 << 20);
    return failures != 0;
}
