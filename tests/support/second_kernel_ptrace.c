/* A ptrace() for user-mode Linux 6.1, loaded by second_kernel.py with LD_PRELOAD. It repairs two things.
 *
 * Registers: user-mode Linux sets those of a process from a buffer of 2,696 bytes. The kernel accepts only the size of
 * all registers (xstateregs_set() in arch/x86/kernel/fpu/regset.c), so on processors with more, such as those of AMX,
 * user-mode Linux would end at its first process. The registers that it does not know keep their values here.
 *
 * Copies: at each fork and exec user-mode Linux copies the host's process with its mappings, one for each page, and
 * uses none of them (newer ones start an empty process). A process of tests has some 30,000: without these copies a
 * share of tests/netns takes 2:10 minutes in place of 4:25. Here each copy is one of an empty process.
 */
#include <elf.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
/* The code that copies a process, stub_clone_handler() in arch/um/kernel/skas/clone.c: it begins a page. */
#define COPY_CODE 0xfff0002548e08948 /* its first bytes: mov %rsp,%rax; and $-4096,%rax */
#define SYSCALL 0x20                 /* the offsets of its system call clone, and of the breakpoint at its end */
#define BREAKPOINT 0x99
/* Its arguments and its result, in the page of the stack: struct stub_data. */
#define STACK_OFFSET 0
#define STACK_FILE 8
#define RESULT 16

typedef struct user_regs_struct general_registers;

static char registers[1 << 16]; /* not on the stack: those of user-mode Linux's threads have 16 KiB */
static pid_t empty;             /* the process without mappings; 0 before the first copy */

static long trace(long request, pid_t pid, unsigned long address, const void *data)
{
    return syscall(SYS_ptrace, request, pid, address, data);
}

static long peek(pid_t pid, unsigned long address)
{
    long word = 0;

    trace(PTRACE_PEEKDATA, pid, address, &word);
    return word;
}

/* Lets a stopped process run to its breakpoint. */
static void run(pid_t pid, const general_registers *from)
{
    int status;

    trace(PTRACE_SETREGS, pid, 0, from);
    do
        trace(PTRACE_CONT, pid, 0, NULL);
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP);
}

/* Lets a process that stopped at a breakpoint call munmap(), or mmap() for anonymous memory at this address. */
static void call(pid_t pid, general_registers at, long number, unsigned long address, unsigned long length)
{
    int status;

    at.rip += SYSCALL;
    at.rax = number;
    at.rdi = address;
    at.rsi = length;
    at.rdx = PROT_READ | PROT_WRITE;
    at.r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    at.r8 = -1;
    at.r9 = 0;
    trace(PTRACE_SETREGS, pid, 0, &at);
    trace(PTRACE_SINGLESTEP, pid, 0, NULL);
    waitpid(pid, &status, __WALL);
}

/* Copies a process, and leaves of the copy only this code and a page for its stack. */
static void create_empty(pid_t pid, const general_registers *copy)
{
    int status;

    run(pid, copy);
    empty = peek(pid, (copy->rsp & -PAGE) + RESULT);
    waitpid(empty, &status, __WALL);
    trace(PTRACE_SETOPTIONS, empty, 0, (void *)PTRACE_O_EXITKILL);
    call(empty, *copy, SYS_munmap, 0, copy->rip);
    call(empty, *copy, SYS_mmap, copy->rsp & -PAGE, PAGE);
}

/* Copies the empty process as `copy` would copy a process; then only the breakpoint is left of `copy`. */
static void copy_empty(pid_t pid, general_registers *copy)
{
    unsigned long stack = copy->rsp & -PAGE;

    if (!empty)
        create_empty(pid, copy);
    trace(PTRACE_POKEDATA, empty, stack + STACK_OFFSET, (void *)peek(pid, stack + STACK_OFFSET));
    trace(PTRACE_POKEDATA, empty, stack + STACK_FILE, (void *)peek(pid, stack + STACK_FILE));
    run(empty, copy);
    trace(PTRACE_POKEDATA, pid, stack + RESULT, (void *)peek(empty, stack + RESULT));
    copy->rip += BREAKPOINT;
}

long ptrace(enum __ptrace_request request, ...)
{
    struct iovec all = {registers, sizeof registers};
    general_registers general;
    long word, result;
    pid_t pid;
    void *address, *data;
    va_list arguments;

    va_start(arguments, request);
    pid = va_arg(arguments, pid_t);
    address = va_arg(arguments, void *);
    data = va_arg(arguments, void *);
    va_end(arguments);

    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        result = syscall(SYS_ptrace, request, pid, address, &word);
        return result < 0 ? result : word;
    }
    if (request == PTRACE_SETREGS) {
        general = *(general_registers *)data;
        if (general.rip % PAGE == 0 && peek(pid, general.rip) == (long)COPY_CODE)
            copy_empty(pid, &general);
        data = &general;
    }
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        const struct iovec *known = data;
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && all.iov_len > known->iov_len) {
            memcpy(registers, known->iov_base, known->iov_len);
            data = &all;
        }
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
