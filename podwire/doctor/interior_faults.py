"""The faults inside a running pod (interior.py finds them), for the manual."""

from __future__ import annotations

from podwire.doctor.finding import Fault, Severity

DOWN = Fault(
    "pod-link-down",
    Severity.PROBLEM,
    "the interface in a running pod is down",
)
ADDRESS = Fault(
    "pod-address-missing",
    Severity.PROBLEM,
    "a running pod has lost an address that ADD gave it, or has it with another prefix length",
)
FOREIGN_ADDRESS = Fault(
    "pod-address-foreign",
    Severity.PROBLEM,
    "a running pod has an address that belongs to another pod, to its gateway or to the host, or sends from an address "
    "that ADD did not allocate, because that comes first",
)
GATEWAY = Fault(
    "pod-gateway-wrong",
    Severity.PROBLEM,
    "a running pod sends packets to other machines to another gateway, or through another interface, than ADD set",
)
ROUTE = Fault(
    "pod-route-missing",
    Severity.PROBLEM,
    "a running pod has lost its default route",
)
REFUSED = Fault(
    "pod-route-refuses",
    Severity.PROBLEM,
    "a route or a policy rule inside a running pod refuses its packets",
)
NEIGHBOUR = Fault(
    "pod-neighbour-wrong",
    Severity.PROBLEM,
    "a running pod's neighbour entry of its gateway, or of another pod, has another MAC address than that has",
)
MAC = Fault(
    "pod-mac-changed",
    Severity.PROBLEM,
    "the MAC address of a running pod's interface is another one than ADD reported",
)
NOARP = Fault(
    "pod-without-arp",
    Severity.PROBLEM,
    "ARP is switched off for a running pod's interface: the pod finds no neighbour",
)
MTU = Fault(
    "mtu-mismatch",
    Severity.PROBLEM,
    "the two ends of a pod's veth, or the veth and its bridge, have different MTUs: larger packets are dropped without "
    "an answer; or the MTU is too small for the pod's IP version",
)
RULE = Fault(
    "pod-rule-drops",
    Severity.PROBLEM,
    "a rule or a policy of the packet filter inside a running pod drops its packets",
)
SETTING = Fault(
    "pod-setting",
    Severity.WARNING,
    "a kernel setting inside a running pod stops its packets, or its answers",
)
LOOPBACK = Fault(
    "pod-loopback-down",
    Severity.NOTE,
    "the interface lo in a running pod is down: 127.0.0.1 does not work in the pod",
)
LISTENS = Fault(
    "listens-on-loopback",
    Severity.WARNING,
    "the process behind a published port listens only on 127.0.0.1 inside the pod: the port leads nowhere",
)
PORT_UNUSED = Fault(
    "port-without-listener",
    Severity.WARNING,
    "a published port leads to a port at which no program of the pod listens, while its programs listen at others",
)
RESOLVER = Fault(
    "pod-resolver-dead",
    Severity.PROBLEM,
    "no program can answer at the address of a running pod's resolver: names are not found, or only after seconds",
)
TRAFFIC = Fault(
    "pod-traffic",
    Severity.WARNING,
    "a queue or a filter of the interface in a running pod loses packets. An eBPF program that sees all packets there, "
    "or chooses the sockets that get them (sk_lookup), is a note: doctor does not know what it does",
)

RESOLVER_FIX = "set the resolver in the runtime's or the pod's DNS configuration, and create the pod again"

LISTENS_FIX = "have it listen on 0.0.0.0 or on the pod's address"

PORT_UNUSED_FIX = "correct the pod's containerPort, or the port of its program, and create the pod again"
