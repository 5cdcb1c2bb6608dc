/* Sends the netlink messages that a verb sent, as recorded by bench/replay.py, and does nothing else.
 *
 * One rule: the recording is sent unchanged; the program fails when the kernel's answers have another number of errors.
 *
 * The file RECORDING has 32-bit numbers: the descriptor of CNI_NETNS, which a message may contain, or 0; the number of
 * sends; for each send the number of its socket, the protocol, whether the socket is in CNI_NETNS, the number of answers
 * and of errors among them, its length in bytes, and its bytes, padded to four.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define SOCKETS 64

static char recording[1 << 20] __attribute__((aligned(4)));
static char in[1 << 17] __attribute__((aligned(4)));

static void die(const char *object)
{
    perror(object);
    exit(1);
}

static int get_socket(unsigned number, unsigned protocol, unsigned in_pod, int netns)
{
    static int sockets[SOCKETS]; /* 0: not open yet */
    struct timeval timeout = {.tv_sec = 5}; /* fewer answers than recorded are an error */
    int on = 1, home = -1, *sock = &sockets[number];
    if (*sock)
        return *sock;
    if (in_pod) {
        home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (setns(netns, CLONE_NEWNET) < 0)
            die("setns");
    }
    *sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (*sock < 0)
        die("socket");
    setsockopt(*sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(*sock, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    setsockopt(*sock, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    setsockopt(*sock, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof on);
    if (in_pod && (setns(home, CLONE_NEWNET) < 0 || close(home) < 0))
        die("setns");
    return *sock;
}

static unsigned count_errors(int sock, unsigned answers)
{
    unsigned errors = 0;
    while (answers--) {
        struct nlmsghdr *m = (struct nlmsghdr *)in;
        ssize_t left = recv(sock, in, sizeof in, 0);
        if (left < 0)
            die("recv");
        for (; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left))
            errors += m->nlmsg_type == NLMSG_ERROR && ((struct nlmsgerr *)NLMSG_DATA(m))->error;
    }
    return errors;
}

static int open_netns(int descriptor)
{
    int netns = open(getenv("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
    if (netns < 0 || (netns != descriptor && dup3(netns, descriptor, O_CLOEXEC) < 0))
        die("CNI_NETNS");
    return descriptor;
}

int main(void)
{
    ssize_t got, length = 0;
    unsigned *word = (unsigned *)recording, sends;
    int netns, file = open(getenv("RECORDING"), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        die("RECORDING");
    while ((got = read(file, recording + length, sizeof recording - length)) > 0)
        length += got;
    close(file);
    netns = *word ? open_netns(*word) : -1;
    word++;
    for (sends = *word++; sends--;) {
        unsigned recorded_errors = word[4], size = word[5], errors;
        int sock;
        if (word[0] >= SOCKETS)
            return 2;
        sock = get_socket(word[0], word[1], word[2], netns);
        if (send(sock, word + 6, size, 0) < 0)
            die("send");
        errors = count_errors(sock, word[3]);
        if (errors != recorded_errors) {
            fprintf(stderr, "%u errors instead of %u, %u sends before the end\n", errors, recorded_errors, sends);
            return 1;
        }
        word += 6 + (size + 3) / 4;
    }
    return 0;
}
