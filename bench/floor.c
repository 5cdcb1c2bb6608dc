/* The kernel's work alone for a verb: sends the same requests, written by hand, and does nothing else.
 *
 * One rule: only necessary work. Of each answer it reads the error, and the link index if the next request needs it; so
 * no implementation of the verb, in any language, can be faster.
 *
 * The environment variable FLOOR selects the verb ("VERSION" does nothing, "LEASE ADD" is host-local's part). Further
 * variables: CNI_NETNS, BRIDGE, ADDRESS and GATEWAY (IPv4, a /16), LEASES (an existing directory), INDEX (the index of
 * the host veth, which recordings contain).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/net_namespace.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#define VETH "floor0"
#define PEER "eth0"
#define LEASE "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\neth0"

static char out[4096] __attribute__((aligned(4)));
static char in[65536] __attribute__((aligned(4)));
static size_t used;              /* bytes of `out` */
static struct nlmsghdr *current; /* the message that is being written */

static void die(const char *object)
{
    perror(object);
    exit(1);
}

static const char *required_env(const char *name)
{
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set\n", name);
        exit(2);
    }
    return value;
}

/* --- messages --- */

static void *message(int type, int flags, size_t size)
{
    current = (struct nlmsghdr *)(out + used);
    memset(current, 0, NLMSG_SPACE(size));
    current->nlmsg_type = type;
    current->nlmsg_flags = NLM_F_REQUEST | flags;
    current->nlmsg_len = NLMSG_LENGTH(size);
    used += NLMSG_SPACE(size);
    return NLMSG_DATA(current);
}

static struct rtattr *attribute(int type, const void *data, size_t size)
{
    struct rtattr *a = (struct rtattr *)(out + used);
    memset(a, 0, RTA_SPACE(size));
    a->rta_type = type;
    a->rta_len = RTA_LENGTH(size);
    if (data)
        memcpy(RTA_DATA(a), data, size);
    used += RTA_SPACE(size);
    current->nlmsg_len = out + used - (char *)current;
    return a;
}

static void nested_end(struct rtattr *a)
{
    a->rta_len = out + used - (char *)a;
}

static void number(int type, unsigned value)
{
    attribute(type, &value, 4);
}

static void text(int type, const char *value)
{
    attribute(type, value, strlen(value) + 1);
}

static struct ifinfomsg *link_message(int type, int flags, int index)
{
    struct ifinfomsg *m = message(type, flags, sizeof *m);
    m->ifi_index = index;
    return m;
}

static void send_all(int sock)
{
    if (send(sock, out, used, 0) < 0)
        die("send");
    used = 0;
}

static ssize_t received; /* bytes of `in` */

static struct nlmsghdr *answer(int sock)
{
    struct nlmsghdr *first = (struct nlmsghdr *)in;
    received = recv(sock, in, sizeof in, 0);
    if (received < (ssize_t)sizeof *first)
        die("recv");
    if (first->nlmsg_type == NLMSG_ERROR && ((struct nlmsgerr *)NLMSG_DATA(first))->error) {
        errno = -((struct nlmsgerr *)NLMSG_DATA(first))->error;
        die("netlink");
    }
    return first;
}

static void answers(int sock, int count)
{
    while (count--)
        answer(sock);
}

static void dump(int sock)
{
    for (;;) {
        struct nlmsghdr *m = answer(sock);
        for (; NLMSG_OK(m, received); m = NLMSG_NEXT(m, received))
            if (m->nlmsg_type == NLMSG_DONE)
                return;
    }
}

static int link_index(int sock, const char *name)
{
    link_message(RTM_GETLINK, 0, 0);
    text(IFLA_IFNAME, name);
    number(IFLA_EXT_MASK, 8); /* RTEXT_FILTER_SKIP_STATS */
    send_all(sock);
    return ((struct ifinfomsg *)NLMSG_DATA(answer(sock)))->ifi_index;
}

static int route_socket(void)
{
    int on = 1, sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (sock < 0)
        die("socket");
    setsockopt(sock, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    setsockopt(sock, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof on);
    return sock;
}

/* --- files --- */

static void sysctl(const char *path)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        die(path);
    if (write(file, "0", 1) < 0)
        die(path);
    close(file);
}

static void lease(const char *verb)
{
    const char *address = required_env("ADDRESS");
    char content[sizeof LEASE];
    int file, directory = open(required_env("LEASES"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    int lock = openat(directory, "lock", O_RDONLY | O_CREAT | O_CLOEXEC, 0640);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        die("lock");
    if (!strcmp(verb, "ADD")) {
        file = openat(directory, address, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 || write(file, LEASE, sizeof LEASE - 1) < 0)
            die(address);
        close(file);
        file = openat(directory, "last_reserved_ip.0", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || write(file, address, strlen(address)) < 0)
            die("last_reserved_ip.0");
        close(file);
    } else if (!strcmp(verb, "CHECK")) {
        file = openat(directory, address, O_RDONLY | O_CLOEXEC);
        if (file < 0 || read(file, content, sizeof content) < 0)
            die(address);
        close(file);
    } else if (unlinkat(directory, address, 0) < 0)
        die(address);
    close(lock);
    close(directory);
}

/* --- verbs --- */

struct namespaces {
    int host, pod;   /* sockets */
    int netns, home; /* the pod's namespace, the host's */
};

static struct namespaces open_both(void)
{
    struct namespaces p;
    p.netns = open(required_env("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
    p.home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (p.netns < 0 || p.home < 0)
        die("namespace");
    p.host = route_socket();
    if (setns(p.netns, CLONE_NEWNET) < 0)
        die("setns");
    p.pod = route_socket();
    if (setns(p.home, CLONE_NEWNET) < 0)
        die("setns");
    return p;
}

static void print_result(void)
{
    memset(out, ' ', 700); /* the length of a result */
    if (write(1, out, 700) < 0)
        die("stdout");
}

static void create_veth(struct namespaces p, int bridge)
{
    int index = atoi(required_env("INDEX"));
    struct ifinfomsg *m = link_message(RTM_NEWLINK, NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE, index);
    struct ifinfomsg none = {0};
    struct rtattr *info, *data, *peer;
    m->ifi_flags = m->ifi_change = IFF_UP;
    text(IFLA_IFNAME, VETH);
    number(IFLA_MASTER, bridge);
    info = attribute(IFLA_LINKINFO, NULL, 0);
    attribute(IFLA_INFO_KIND, "veth", 4);
    data = attribute(IFLA_INFO_DATA, NULL, 0);
    peer = attribute(VETH_INFO_PEER, &none, sizeof none);
    text(IFLA_IFNAME, PEER);
    number(IFLA_NET_NS_FD, p.netns);
    nested_end(peer);
    nested_end(data);
    nested_end(info);
    send_all(p.host);
    answers(p.host, 1);
}

static void configure(struct namespaces p, int eth0)
{
    unsigned address = inet_addr(required_env("ADDRESS")), gateway = inet_addr(required_env("GATEWAY"));
    struct ifaddrmsg *a = message(RTM_NEWADDR, NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE, sizeof *a);
    struct ifinfomsg *l;
    struct rtmsg *r;
    a->ifa_family = AF_INET;
    a->ifa_prefixlen = 16;
    a->ifa_index = eth0;
    number(IFA_LOCAL, address);
    number(IFA_ADDRESS, address);
    l = link_message(RTM_NEWLINK, NLM_F_ACK, eth0);
    l->ifi_flags = l->ifi_change = IFF_UP;
    r = message(RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE, sizeof *r);
    r->rtm_family = AF_INET;
    r->rtm_table = RT_TABLE_MAIN;
    r->rtm_protocol = RTPROT_BOOT;
    r->rtm_type = RTN_UNICAST;
    number(RTA_GATEWAY, gateway);
    number(RTA_OIF, eth0);
    send_all(p.pod);
    answers(p.pod, 3);
}

static void request_dump(int sock, int type, int family, int index)
{
    if (type == RTM_GETADDR) {
        struct ifaddrmsg *m = message(type, NLM_F_DUMP, sizeof *m);
        m->ifa_family = family;
        m->ifa_index = index;
    } else {
        struct rtmsg *m = message(type, NLM_F_DUMP, sizeof *m);
        m->rtm_family = family;
        m->rtm_table = RT_TABLE_MAIN;
    }
    send_all(sock);
    dump(sock);
}

static void add(void)
{
    struct namespaces p = open_both();
    int bridge = link_index(p.host, required_env("BRIDGE")), eth0;
    create_veth(p, bridge);
    sysctl("/proc/sys/net/ipv6/conf/" VETH "/accept_ra");
    lease("ADD");
    link_index(p.host, VETH); /* the result contains its MAC address */
    eth0 = link_index(p.pod, PEER);
    configure(p, eth0);
    request_dump(p.host, RTM_GETADDR, AF_UNSPEC, bridge);
    print_result();
}

static void check(void)
{
    struct namespaces p = open_both();
    int bridge = link_index(p.host, required_env("BRIDGE")), eth0;
    lease("CHECK");
    eth0 = link_index(p.pod, PEER);
    link_index(p.host, VETH);
    request_dump(p.pod, RTM_GETADDR, AF_INET, eth0);
    request_dump(p.pod, RTM_GETROUTE, AF_INET, 0);
    request_dump(p.host, RTM_GETADDR, AF_UNSPEC, bridge);
}

/* Cleans up; not measured, because it waits until the kernel has freed the veth, which no DEL has to. */
static void del(void)
{
    struct namespaces p = open_both();
    lease("DEL");
    link_message(RTM_DELLINK, NLM_F_ACK, 0);
    text(IFLA_IFNAME, VETH);
    send_all(p.host);
    answers(p.host, 1);
}

int main(void)
{
    const char *verb = required_env("FLOOR");
    if (!strncmp(verb, "LEASE ", 6)) {
        lease(verb + 6);
        if (!strcmp(verb, "LEASE ADD"))
            print_result();
    } else if (!strcmp(verb, "ADD"))
        add();
    else if (!strcmp(verb, "CHECK"))
        check();
    else if (!strcmp(verb, "DEL"))
        del();
    return 0;
}
