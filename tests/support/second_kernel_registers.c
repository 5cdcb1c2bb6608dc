/* A ptrace() for user-mode Linux 6.1 on processors with more registers than it knows, such as those of AMX.
 *
 * It sets a process's registers from a buffer of 2,696 bytes. The kernel accepts only the size of all registers
 * (xstateregs_set() in arch/x86/kernel/fpu/regset.c), so user-mode Linux would end at its first process. The registers
 * that it does not know keep their values here. Loaded by second_kernel.py with LD_PRELOAD.
 */
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char registers[1 << 16]; /* not on the stack: those of user-mode Linux's threads have 16 KiB */

long ptrace(enum __ptrace_request request, ...)
{
    struct iovec all = {registers, sizeof registers};
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
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        const struct iovec *known = data;
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && all.iov_len > known->iov_len) {
            memcpy(registers, known->iov_base, known->iov_len);
            data = &all;
        }
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
