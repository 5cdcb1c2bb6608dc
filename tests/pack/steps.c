/* steps.c: a program with the layout and the pages of the image builder; prints which steps can be recorded.
 *
 * One rule: it replaces alloc.c, and allocates nothing.
 */
#include "layout.h"
#include "pages.h"

#include <stdio.h>
#include <stdlib.h>

size_t slot_size(unsigned class)
{
    return 16;
}

void heap_broken(const char *message)
{
    abort();
}

int main(void)
{
    static const unsigned steps[] = {0, 31, 32, 33};

    heap_pages_used = HEAP_LIBC_PAGES + 1;
    if (!layout_learn() || !layout_watch(heap_pages_used))
        return 1;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        printf("%u %d\n", steps[i], layout_step(steps[i]));
    return 0;
}
