"""What the tests share: running a built plugin, throwaway namespaces, network states to compare.

Running a plugin
    binaries: the directory of the executables under test, and the plugins' names
    invocation: starts one plugin as a runtime does; its outcome
    netconf: a configuration, parsed in the tests' process
    results: prevResult as a runtime passes it
    netlist: a network's list, each verb run by all its plugins
    libcni: libcni's result cache
    scripted_ipam: an IPAM plugin that runs a test's script
    process_pool: many plugins in parallel from one process
    mount_wrapper: a plugin in a mount namespace that a test changes
    streams: standard streams in memory, for a plugin in the tests' process

Namespaces and their state
    namespaces: temporary network namespaces
    netstate: the state of a namespace as a value
    golden: the states that the reference plugins create
    processes: runs the system's tools
    private_host: moves a process into new namespaces; disks
    libc: system calls for which Python has no function
    rootless: tests as root of a user namespace
    seccomp: a program to which the kernel refuses one system call
    programs: stand-ins for the host's programs
    xtables: the programs of iptables in a chosen variant
    iptables_table: a table of iptables in memory
    firewalld: a real firewalld on a bus of its own
    modules: removes kernel modules
    vlans: the VLANs of a bridge

Networks of one plugin, or of bridge and one after it
    attaching: Network and ChainedNetwork, on which the others are based
    bare_plugin: BarePlugin: portmap or firewall for pods that have no interface
    bandwidth_network: bridge and bandwidth; traffic control
    firewall_network: bridge and firewall
    firewall_tables: firewall, and its rules in iptables and nftables
    host_device_network: host-device and its device
    host_local: host-local's allocator, called without the plugin
    hostports: portmap and its rules
    publishing: bridge and portmap, and a client on the uplink
    sbr_network: sbr on an interface that a test connects
    tuning_network: tuning
    single_link: a network of each plugin that creates or moves a pod's interface
    uplink: a host whose uplink is the master of macvlan and others
    vrf_network: vrf
    podman_ipvlan: podman's networks of ipvlan
    chained: the chain from bridge to tuning, one verb a call
    pod_interfaces: the plugins that need no bridge, and their objects

Packets
    sockets: servers and connections over TCP, UDP and SCTP
    outside: a machine at the node's uplink
    tcp: whole TCP connections between namespaces
    rates: the rate between namespaces
    flannel: a stand-in for flannel's plugin, and its daemon's file
    frames: stations that send and receive Ethernet frames

DHCP
    dhcp: a server's address, the keys of a network, a scripted daemon
    dhcp_node: podwire's or the reference's daemon, and dnsmasq
    dhcp_forger: a forged or faulty server or router

Nodes for the operator's tool
    tool: `podwire` with temporary directories
    node: a network of all plugins as a runtime stores it
    doctor_node: a node for `podwire doctor`
    repair_node: a node for `podwire repair`
    packet_node: a node for `podwire test` and `podwire trace`
    unit_node: a node of unit tests for doctor's checks
    fault_node: a node for the table of faults
    fault_table: the faults that doctor must find
    doctor_manual: writes the table of docs/doctor.md
    exposing_commands: finds printed commands that open the node
    uninterruptible: a process in state D
    samples: the sample networks in conf/
    multus: the calls that Multus makes

Faults, kills and storms
    fault_scenarios: one verb under faults, and what it must leave
    syscall_faults: the system calls of a verb, and their errors
    netlink_faults: faults in netlink requests
    injection: a verb under strace's injection
    crash_node: a node on which verbs are killed
    tracing: a verb under ptrace; a signal at one of its calls
    syscalls: which calls of a traced process change something
    storm: many random verbs in parallel
    storm_plan: a storm's plan, containers and report
    storm_check: the state after a storm
    soak: storms for a long time

Kernels and machines
    kernels: the features of the running kernel
    recorder: the report of a run of pytest
    kernel_boot: boots another kernel for one command
    second_kernel: user-mode Linux
    debian_kernel: Debian's kernels on an emulated machine
    arm64_machine: an emulated machine for 64-bit ARM
    initrd: the archive from which an emulated machine boots
    machine: a private machine for a container runtime
    systemd_machine: a machine whose process 1 is systemd
    inherited: what a process inherits from the tester's shell

Agent, cluster and stores
    cluster: a cluster's nodes as namespaces
    cluster_world: a running cluster of five nodes
    cluster_agent: podwire-agent on the nodes
    cluster_nodes: large Node objects
    agent_nodes: nodes as network and mount namespaces
    agent_routes: the agent's routes on the nodes
    agent_container: the DaemonSet's container
    agent_image: the agent's image, unpacked
    container: a container with a manifest's permissions
    manifests: the manifests in deploy/, rendered
    kubelet: the calls of containerd and CRI-O
    kubernetes_double: a double of the Kubernetes API server
    kubernetes_store: the double's objects
    kube_apiserver: a real kube-apiserver
    certificates: a certificate authority
    cutting_proxy: a proxy that loses answers or requests
    stores: the stores of the contract suite
    store_double: a double of the store of pools
    etcd: etcd members on loopback
    etcd_members: etcd members that can be cut off
    pool_world: a cluster whose agents share pools in etcd
    pool_faults: ADD and DEL on it while machines fail
    pools_tool: the tool beside an agent
    admin_world: a space with nodes and blocks

Documents and values
    markdown: parses the project's documents
    sources: the Python sources, each parsed once
    short: which tests and cases `make test` runs
    compatibility: what docs/compatibility.md promises
    errors: exceptions as values
"""
