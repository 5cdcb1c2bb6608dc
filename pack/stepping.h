/* stepping.h: executes a single instruction, then raises SIGTRAP, for the signal handlers of layout.c.
 *
 * One rule: between step_begin() and step_end() no other instruction of the program runs.
 */
#ifndef PODWIRE_STEPPING_H
#define PODWIRE_STEPPING_H

#include <ucontext.h>

#if defined(__x86_64__)

#define TRAP_FLAG 0x100 /* of EFLAGS: trap after the next instruction */

static inline int step_prepare(void)
{
    return 1;
}

/* Returns whether the instruction is known to write. */
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

/* ARM has no such flag for programs. A copy of the instruction is executed, followed by a breakpoint: instructions that
 * use the heap work at any address. Each instruction has a separate copy, since rewriting code is slow in emulators.
 * (The second half of an exclusive pair fails there, as after any signal; the program repeats it until layout.c leaves
 * the page open.) */
#define BREAKPOINT 0xd4200000u
#define COPIES 65536u

typedef struct {
    uint32_t instruction, breakpoint;
} Copy;

static Copy *copies;
static uint64_t stepped_over; /* the address of the instruction that is executed, 0 for none */

static inline int step_prepare(void)
{
    int protection = PROT_READ | PROT_WRITE | PROT_EXEC;

    copies = mmap(NULL, COPIES * sizeof *copies, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return copies != MAP_FAILED;
}

/* Not known: a write to a page opened for reading faults again. */
static inline int step_writes(const ucontext_t *context)
{
    return 0;
}

static inline void step_begin(ucontext_t *context)
{
    uint32_t instruction, number;

    if (stepped_over) /* the instruction uses a second page */
        return;
    instruction = *(const uint32_t *)context->uc_mcontext.pc;
    number = instruction * 2654435761u >> 16; /* a hash; some thousand different instructions use the heap */
    while (copies[number].breakpoint && copies[number].instruction != instruction)
        number = (number + 1) % COPIES;
    if (!copies[number].breakpoint) {
        copies[number] = (Copy){instruction, BREAKPOINT};
        __builtin___clear_cache((char *)&copies[number], (char *)&copies[number + 1]);
    }
    stepped_over = context->uc_mcontext.pc;
    context->uc_mcontext.pc = (uint64_t)&copies[number];
}

static inline void step_end(ucontext_t *context)
{
    context->uc_mcontext.pc = stepped_over + sizeof(uint32_t);
    stepped_over = 0;
}

#endif
#endif
