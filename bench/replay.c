/* Says to the kernel over netlink what a verb said, as it was recorded (bench/replay.py), and nothing else.
 *
 * One rule: the recording is taken as it is; where the kernel answers with other errors than it did then, this fails.
 *
 * In the file RECORDING: numbers of 32 bits. The descriptor that CNI_NETNS had, which a message may name, or 0; how many
 * sends; of each the number of its socket, the protocol, whether it is in CNI_NETNS, how many answers came and how many
 * of them were errors, its length, and so many bytes.
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

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int opened(unsigned number, unsigned protocol, unsigned in_pod, int netns)
{
    static int sockets[SOCKETS]; /* 0: not there yet */
    struct timeval patience = {.tv_sec = 5}; /* fewer answers than there were: an error as well */
    int on = 1, home = -1, *found = &sockets[number];
    if (*found)
        return *found;
    if (in_pod) {
        home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (setns(netns, CLONE_NEWNET) < 0)
            die("setns");
    }
    *found = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (*found < 0)
        die("socket");
    setsockopt(*found, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(*found, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    setsockopt(*found, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    setsockopt(*found, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof on);
    if (in_pod && (setns(home, CLONE_NEWNET) < 0 || close(home) < 0))
        die("setns");
    return *found;
}

static unsigned failures(int sock, unsigned answers)
{
    unsigned failed = 0;
    while (answers--) {
        struct nlmsghdr *m = (struct nlmsghdr *)in;
        ssize_t left = recv(sock, in, sizeof in, 0);
        if (left < 0)
            die("recv");
        for (; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left))
            failed += m->nlmsg_type == NLMSG_ERROR && ((struct nlmsgerr *)NLMSG_DATA(m))->error;
    }
    return failed;
}

static int pod(int wanted)
{
    int netns = open(getenv("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
    if (netns < 0 || (netns != wanted && dup3(netns, wanted, O_CLOEXEC) < 0))
        die("CNI_NETNS");
    return wanted;
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
    netns = *word ? pod(*word) : -1;
    word++;
    for (sends = *word++; sends--;) {
        unsigned failed = word[4], size = word[5], now;
        int sock;
        if (word[0] >= SOCKETS)
            return 2;
        sock = opened(word[0], word[1], word[2], netns);
        if (send(sock, word + 6, size, 0) < 0)
            die("send");
        now = failures(sock, word[3]);
        if (now != failed) {
            fprintf(stderr, "%u errors instead of %u, %u sends before the end\n", now, failed, sends);
            return 1;
        }
        word += 6 + (size + 3) / 4;
    }
    return 0;
}
