/* A ptrace() for user-mode Linux 6.1, loaded by second_kernel.py with LD_PRELOAD. It repairs two things.
 *
 * Registers: user-mode Linux sets those of a process from a buffer of 2,696 bytes. The kernel accepts only the size of
 * all registers (xstateregs_set() in arch/x86/kernel/fpu/regset.c), so on processors with more registers, such as
 * AMX's, user-mode Linux would end at its first process. The registers that it does not know keep their values here.
 *
 * Clones: at each fork and exec user-mode Linux clones the caller's process on the host, then removes all that it
 * inherited, or maps it again: a mapping for each page, 30,000 for a process of tests. Later versions start a new
 * process. Here an empty process is cloned instead: a share of tests/netns takes 2:10 minutes in place of 4:25.
 * A program that calls modify_ldt() would lose the entries at its next fork.
 */
#include <elf.h>
#include <errno.h>
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
/* stub_clone_handler() in arch/um/kernel/skas/clone.c: it begins a page of each process. These are its first bytes, and
 * the offsets of its system call clone and of the breakpoint at its end. */
#define CLONE_HANDLER 0xfff0002548e08948 /* mov %rsp,%rax; and $-4096,%rax */
#define SYSCALL 0x20
#define BREAKPOINT 0x99
/* struct stub_data in the page of its stack (arch/um/include/shared/skas/stub-data.h). */
#define OFFSET 0
#define FD 8
#define PARENT_ERR 16

typedef struct user_regs_struct general_registers;

static char xstate[1 << 16]; /* not on the stack: those of user-mode Linux's threads have 16 KiB */
static pid_t empty;          /* the process without mappings; 0 before the first clone, -1 if it failed */

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

static int is_clone_handler(pid_t pid, unsigned long code)
{
    return code % PAGE == 0 && peek(pid, code) == (long)CLONE_HANDLER &&
           (peek(pid, code + SYSCALL) & 0xffff) == 0x050f && (peek(pid, code + BREAKPOINT) & 0xff) == 0xcc;
}

/* Waits until a process has a SIGTRAP, and resumes it after other signals; returns whether it got there. */
static int wait_for_trap(pid_t pid, long resume)
{
    int status;

    for (;;) {
        if (waitpid(pid, &status, __WALL) != pid) {
            if (errno == EINTR)
                continue;
            return 0;
        }
        if (!WIFSTOPPED(status))
            return 0;
        if (WSTOPSIG(status) == SIGTRAP)
            return 1;
        trace(resume, pid, 0, NULL);
    }
}

/* Resumes a process with these registers, by PTRACE_CONT or PTRACE_SINGLESTEP, until its next SIGTRAP. */
static int run(pid_t pid, const general_registers *from, long resume)
{
    return !trace(PTRACE_SETREGS, pid, 0, from) && !trace(resume, pid, 0, NULL) && wait_for_trap(pid, resume);
}

/* Makes a process that stopped at a breakpoint call munmap(), or mmap() of anonymous memory at `address`. */
static int call(pid_t pid, general_registers registers, long number, unsigned long address, unsigned long length)
{
    registers.rip += SYSCALL;
    registers.rax = number;
    registers.rdi = address;
    registers.rsi = length;
    registers.rdx = PROT_READ | PROT_WRITE;
    registers.r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    registers.r8 = -1;
    registers.r9 = 0;
    return run(pid, &registers, PTRACE_SINGLESTEP) && !trace(PTRACE_GETREGS, pid, 0, &registers) &&
           (long)registers.rax >= 0;
}

/* Clones a process, removes all mappings of the clone but this code, and gives it a page for its stack: the page that
 * it got is the one of the process that user-mode Linux is about to create. Returns the clone, -1 after a failure. */
static pid_t create_empty(pid_t pid, const general_registers *clone)
{
    unsigned long stack = clone->rsp & -PAGE;
    pid_t new;

    if (!run(pid, clone, PTRACE_CONT) || (new = peek(pid, stack + PARENT_ERR)) <= 0)
        return -1;
    if (!wait_for_trap(new, PTRACE_CONT) || trace(PTRACE_SETOPTIONS, new, 0, (void *)PTRACE_O_EXITKILL) ||
        !call(new, *clone, SYS_munmap, 0, clone->rip) || !call(new, *clone, SYS_mmap, stack, PAGE))
        return -1;
    return new;
}

/* Clones the empty process in place of `pid`, of which then only the breakpoint is left to run. */
static void clone_empty(pid_t pid, general_registers *clone)
{
    unsigned long stack = clone->rsp & -PAGE;

    if (!empty)
        empty = create_empty(pid, clone);
    if (empty < 0)
        return;
    trace(PTRACE_POKEDATA, empty, stack + OFFSET, (void *)peek(pid, stack + OFFSET));
    trace(PTRACE_POKEDATA, empty, stack + FD, (void *)peek(pid, stack + FD));
    if (!run(empty, clone, PTRACE_CONT)) {
        empty = -1;
        return;
    }
    trace(PTRACE_POKEDATA, pid, stack + PARENT_ERR, (void *)peek(empty, stack + PARENT_ERR));
    clone->rip += BREAKPOINT;
}

long ptrace(enum __ptrace_request request, ...)
{
    struct iovec all = {xstate, sizeof xstate};
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
        if (is_clone_handler(pid, general.rip))
            clone_empty(pid, &general);
        data = &general;
    }
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        const struct iovec *known = data;
        if (trace(PTRACE_GETREGSET, pid, (long)address, &all) == 0 && all.iov_len > known->iov_len) {
            memcpy(xstate, known->iov_base, known->iov_len);
            data = &all;
        }
    }
    return trace(request, pid, (long)address, data);
}
