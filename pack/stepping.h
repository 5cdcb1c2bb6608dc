/* stepping.h: one instruction more, and then SIGTRAP: for layout.c, whose handlers get the context of the thread.
 *
 * One rule: between step_begin() and step_end() no other instruction of the program runs.
 */
#ifndef PODWIRE_STEPPING_H
#define PODWIRE_STEPPING_H

#include <ucontext.h>

#if defined(__x86_64__)

#define TRAP_FLAG 0x100 /* of the processor: interrupt after the next instruction */

static inline int step_prepare(void)
{
    return 1;
}

/* Whether the instruction is known to write. */
static inline int step_writes(const ucontext_t *context)
{
    return context->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
}

static inline void step_begin(ucontext_t *context)
{
    context->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static inline void step_end(ucontext_t *context)
{
    context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

#elif defined(__aarch64__)

#include <stdint.h>
#include <sys/mman.h>

/* This processor has no such flag for programs. The instruction is executed in another place, with a breakpoint behind
 * it: all that use the heap do the same wherever they stand. Each has a place of its own, so that none is rewritten,
 * which emulators are slow at. (The second half of an exclusive pair fails there, as after any signal, and is repeated
 * by the program until layout.c has had enough of it and leaves the page open.) */
#define BREAKPOINT 0xd4200000u
#define PLACES 65536u

typedef struct {
    uint32_t instruction, breakpoint;
} Place;

static Place *places;
static uint64_t stepped_over; /* the address of the instruction; 0 when none is under way */

static inline int step_prepare(void)
{
    places = mmap(NULL, PLACES * sizeof *places, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return places != MAP_FAILED;
}

/* Not known: when it may read, it tries again. */
static inline int step_writes(const ucontext_t *context)
{
    return 0;
}

static inline void step_begin(ucontext_t *context)
{
    uint32_t instruction, number;

    if (stepped_over) /* it writes to a second page */
        return;
    instruction = *(const uint32_t *)context->uc_mcontext.pc;
    number = instruction * 2654435761u >> 16; /* a hash: some thousand kinds of instructions use it */
    while (places[number].breakpoint && places[number].instruction != instruction)
        number = (number + 1) % PLACES;
    if (!places[number].breakpoint) {
        places[number] = (Place){instruction, BREAKPOINT};
        __builtin___clear_cache((char *)&places[number], (char *)&places[number + 1]);
    }
    stepped_over = context->uc_mcontext.pc;
    context->uc_mcontext.pc = (uint64_t)&places[number];
}

static inline void step_end(ucontext_t *context)
{
    context->uc_mcontext.pc = stepped_over + sizeof(uint32_t);
    stepped_over = 0;
}

#endif
#endif
