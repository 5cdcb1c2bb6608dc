"""The settings of the runtimes, read as the runtimes read them."""

import shutil

import pytest

from cni.errors import Code
from podwire import default_network, networks, range_conflicts, runtimes
from podwire.node import programs

DEBIAN_12 = """
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
VERSION_3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A root file system without runtimes."""
    for name in ("_RUN", "_CONTAINERD", "_CRIO", "_CRIO_MORE", "_PODMAN_CHOICE", "_NETAVARK_DIR"):
        monkeypatch.setattr(runtimes, name, f"{tmp_path}{getattr(runtimes, name)}")
    for module, name in ((runtimes, "_PODMAN"), (runtimes, "_PODMAN_HELPER_DIRS"), (programs, "PROGRAM_DIRECTORIES")):
        monkeypatch.setattr(module, name, tuple(f"{tmp_path}{path}" for path in getattr(module, name)))
    return tmp_path


def write(host, path, text):
    """Writes a file."""
    place = host / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)


@pytest.fixture
def installed(host):
    """Returns a function that installs a runtime's program and returns the only installed runtime."""

    def find(program):
        write(host, f"usr/bin/{program}", "")
        (one,) = runtimes.list_installed({})
        return one

    return find


def test_only_installed_runtimes_are_listed(host):
    """A runtime is installed if its program is on PATH or its run directory exists, not if only settings remain."""
    write(host, "etc/containerd/config.toml", DEBIAN_12)
    write(host, "etc/containers/containers.conf", "")
    assert runtimes.list_installed({"PATH": "relative"}) == ()
    (host / "run/crio").mkdir(parents=True)
    write(host, "opt/bin/containerd", "")
    assert [one.name for one in runtimes.list_installed({"PATH": f"{host}/opt/bin"})] == ["containerd", "CRI-O"]


@pytest.mark.parametrize(
    ("text", "bin_dirs", "conf_dir"),
    [
        (None, ("/opt/cni/bin",), "/etc/cni/net.d"),
        (DEBIAN_12, ("/usr/lib/cni",), "/etc/cni/net.d"),
        ("[plugins.cri.cni]\nbin_dir='/v1/'\nconf_dir = '/c'", ("/v1",), "/c"),
        (DEBIAN_12.replace("version = 2", ""), ("/opt/cni/bin",), "/etc/cni/net.d"),
        (VERSION_3 + "bin_dir = '/a'", ("/a",), "/etc/cni/net.d"),
        (VERSION_3 + "bin_dirs = ['/a', '/b']\nbin_dir = ''", ("/a", "/b"), "/etc/cni/net.d"),
        (DEBIAN_12.replace("version = 2", "version = 3"), ("/opt/cni/bin",), "/etc/cni/net.d"),
        ("version = 2\nplugins = 1\n[a]\nday = 1979-05-27T07:32:00Z", ("/opt/cni/bin",), "/etc/cni/net.d"),
    ],
)
def test_containerd_section_by_file_version(host, installed, text, bin_dirs, conf_dir):
    """Only the section for the version of the file is read, as in containerd."""
    if text is not None:
        write(host, "etc/containerd/config.toml", text)
    one = installed("containerd")
    assert (one.bin_dirs, one.conf_dir, one.problem) == (bin_dirs, conf_dir, None)
    assert bool(one.source) == (bin_dirs != ("/opt/cni/bin",))


def test_containerd_imports(host, installed):
    """An imported file replaces the whole section of a plugin, and import cycles end."""
    main = "imports = ['conf.d/*.toml', 'last.toml']\n" + DEBIAN_12
    write(host, "etc/containerd/config.toml", main)
    write(host, "etc/containerd/last.toml", "imports = ['config.toml']")
    write(host, "etc/containerd/conf.d/a.conf", VERSION_3)
    assert installed("containerd").bin_dirs == ("/usr/lib/cni",)
    section = '[plugins."io.containerd.grpc.v1.cri"{}]\n'
    write(host, "etc/containerd/conf.d/a.toml", section.format("") + "sandbox_image = 'x'")
    assert installed("containerd").bin_dirs == ("/opt/cni/bin",)
    write(host, "etc/containerd/conf.d/b.toml", section.format(".cni") + "bin_dir = '/b'")
    one = installed("containerd")
    assert (one.bin_dirs, one.source) == (("/b",), f"{host}/etc/containerd/conf.d/b.toml")


DUMP = """#!/bin/sh
[ "$*" = "config {command}" ] || exit 1
echo 'version = 3
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dir = "{bin_dir}"
bin_dirs = ["/built/in"]
conf_dir = "/c"'
"""


@pytest.mark.parametrize(
    ("main", "more", "bin_dirs", "has_source"),
    [
        (None, None, ("/built/in",), False),
        ("version = 2", None, ("/built/in",), False),
        (DEBIAN_12, None, ("/usr/lib/cni",), True),
        (DEBIAN_12, '[plugins."io.containerd.grpc.v1.cri"]', ("/usr/lib/cni",), True),
        ("[plugins.cri.cni]\nbin_dir='/v1'", None, ("/built/in",), False),
    ],
)
def test_containerd_prints_what_its_files_leave_open(host, main, more, bin_dirs, has_source):
    """Without a directory in the files, with several sections or version 1, `containerd config` is read."""
    if main is not None:
        write(host, "etc/containerd/config.toml", "imports = ['more.toml']\n" * bool(more) + main)
        write(host, "etc/containerd/more.toml", more or "")
    dumped = bin_dirs[0] if more else ""
    text = DUMP.format(bin_dir=dumped, command="default" if main is None else "dump")
    write(host, "usr/bin/containerd", text)
    (one,) = runtimes.list_installed({})
    is_dumped = more is not None or not has_source
    assert (one.bin_dirs, one.conf_dir) == (bin_dirs, "/c" if is_dumped else "/etc/cni/net.d")
    assert bool(one.source) == has_source


@pytest.mark.parametrize("text", ["", "echo 'x ='", "echo 'plugins = 1'", "echo; exit 1"])
def test_containerd_that_prints_no_settings(host, text):
    """A containerd whose settings cannot be read has those of the files, as containerd 1 reads them."""
    write(host, "usr/bin/containerd", f"#!/bin/sh\n{text}")
    (one,) = runtimes.list_installed({})
    assert (one.bin_dirs, one.conf_dir, one.problem) == (("/opt/cni/bin",), "/etc/cni/net.d", None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+deb13u1", "1.7.24~ds1"),
        ("containerd github.com/containerd/containerd/v2 2.1.9+unknown ", "2.1.9+unknown"),
        ("containerd containerd.io v1.7.29 442cb34bda9a6a0fed82a2ca7cade05c5c749582", "1.7.29"),
        ("", ""),
    ],
)
def test_containerd_version(host, text, version):
    """The version is that of the upstream program, from builds of Debian and Docker."""
    write(host, "usr/bin/containerd", f"#!/bin/sh\necho '{text}'")
    assert runtimes.containerd_version({}) == version


def test_containerd_of_docker(host, installed):
    """The containerd of Docker's package, whose CRI plugin is disabled, runs no CNI plugins."""
    write(host, "etc/containerd/config.toml", 'disabled_plugins = ["cri"]')
    assert "disabled_plugins" in installed("containerd").without_cni


def test_crio(host, installed):
    """Each file of crio.conf.d overrides the keys of those before it."""
    assert installed("crio").bin_dirs == ("/opt/cni/bin",)
    write(host, "etc/crio/crio.conf", "[crio.network]\nplugin_dirs = ['/a']\nnetwork_dir = '/n/'\n")
    write(
        host, "etc/crio/crio.conf.d/10-x.conf", "[crio.network]\nplugin_dirs = [\n  '/b', # the package's\n  '/c/',\n]"
    )
    one = installed("crio")
    assert (one.bin_dirs, one.conf_dir, one.source) == (("/b", "/c"), "/n/", f"{host}/etc/crio/crio.conf.d/10-x.conf")


def test_podman(host, installed):
    """The vendor's file, the administrator's file and its drop-ins named *.conf are read in this order."""
    usual = installed("podman")
    assert (usual.bin_dirs[-2:], usual.conf_dir, usual.without_cni) == (
        ("/usr/lib/cni", "/opt/cni/bin"),
        "/etc/cni/net.d",
        "",
    )
    write(host, "usr/share/containers/containers.conf", "[network]\ncni_plugin_dirs = ['/a']\n")
    write(host, "etc/containers/containers.conf.d/1.conf", "[network]\ncni_plugin_dirs = ['/b']\n")
    write(host, "etc/containers/containers.conf.d/2.toml", "[network]\ncni_plugin_dirs = ['/c']\n")
    write(host, "etc/containers/containers.conf", "[network]\ncni_plugin_dirs = ['/d']\nnetwork_config_dir = '/n'\n")
    one = installed("podman")
    assert (one.bin_dirs, one.conf_dir) == (("/b",), "/n")
    assert one.source == f"{host}/etc/containers/containers.conf.d/1.conf"


def test_podman_network_backend(host, installed):
    """The backend is that of a file, else the one that podman chose before, else netavark if installed."""
    write(host, "usr/lib/podman/netavark", "")
    assert "netavark" in installed("podman").without_cni
    write(host, "var/lib/containers/storage/defaultNetworkBackend", "cni")
    assert installed("podman").without_cni == ""
    write(host, "etc/containers/containers.conf", '[network]\nnetwork_backend = "netavark"\n')
    assert 'network_backend = "netavark"' in installed("podman").without_cni
    shutil.rmtree(host / "var")
    write(host, "etc/containers/containers.conf", '[network]\nnetwork_backend = "cni"\n')
    assert installed("podman").without_cni == ""


@pytest.mark.parametrize(
    ("text", "code"), [("x = ", Code.DECODING_FAILURE), (b"\xff".decode("latin-1") * 2, Code.DECODING_FAILURE)]
)
@pytest.mark.parametrize("program", ["containerd", "crio", "podman"])
def test_settings_that_are_not_toml(host, installed, program, text, code):
    """A file that is not TOML is a problem that names the file, and the directories are unknown."""
    for path in ("containerd/config.toml", "crio/crio.conf", "containers/containers.conf"):
        write(host, f"etc/{path}", text)
    one = installed(program)
    assert one.problem.code == code
    assert f"{host}/etc/" in one.problem.msg
    assert one.bin_dirs == ()


def test_install_dir(tmp_path):
    """The directory is the first that has one of the files, else the first that exists, else the first."""
    places = [tmp_path / name for name in ("absent", "present", "used")]
    one = runtimes.Runtime("x", tuple(map(str, places)))
    assert one.install_dir(["bridge"]) == str(places[0])
    places[1].mkdir()
    assert one.install_dir(["bridge"]) == str(places[1])
    places[2].mkdir()
    (places[2] / "bridge").touch()
    assert one.install_dir(["bridge"]) == str(places[2])
    assert one.install_dir(["ptp"]) == str(places[1])


PODMAN = ("podman", "its default", "10.88.0.0/16")


def test_subnets_of_podman(host):
    """Podman's default network has a subnet without a file; netavark's networks, and settings, are read."""
    assert list(runtimes.list_podman_subnets({})) == []  # podman is not installed
    write(host, "usr/bin/podman", "")
    assert list(runtimes.list_podman_subnets({})) == [PODMAN]
    directory = "etc/containers/networks"
    write(host, f"{directory}/web.json", '{"name": "web", "subnets": [{"subnet": "10.89.0.0/24"}, 7]}')
    write(host, f"{directory}/x.json", "{")
    web = ("web", f"{host}/{directory}/web.json", "10.89.0.0/24")
    assert list(runtimes.list_podman_subnets({}))[:1] == [web]
    write(
        host, "etc/containers/containers.conf", "[network]\ndefault_subnet = '10.90.0.0/16'\ndefault_network = 'mine'"
    )
    assert list(runtimes.list_podman_subnets({}))[-1] == ("mine", "its default", "10.90.0.0/16")
    write(host, f"{directory}/mine.json", '{"name": "mine", "subnets": [{"subnet": "10.91.0.0/16"}]}')
    subnets = [subnet for name, _, subnet in runtimes.list_podman_subnets({}) if name == "mine"]
    assert subnets == ["10.91.0.0/16"]


OTHER = """{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge",
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.8.0/24"}]]}}]}"""


def test_conflicts_of_a_new_network(host):
    """Subnets of a new network that overlap with another file's, or podman's, are found, not those of its own file."""
    write(host, "usr/bin/podman", "")
    write(host, "net.d/20-other.conflist", OTHER)
    file = default_network.render(default_network.STANDARD, ["10.22.0.0/16"])
    write(host, "net.d/10-podwire.conflist", file.decode())
    path = f"{host}/net.d/20-other.conflist"
    sentence = "two containers can get one address; use another subnet"
    for subnet, conflict in (
        ("10.22.0.0/16", f'10.22.8.0/24 of network "other" ({path})'),
        ("10.80.0.0/12", '10.88.0.0/16 of podman\'s network "podman" (its default)'),
        ("10.23.0.0/16", ""),
        ("fd00::/64", ""),
    ):
        new = networks.parse(default_network.render(default_network.STANDARD, [subnet]), "")
        expected = [f"{subnet} overlaps with {conflict}: {sentence}"] if conflict else []
        assert list(range_conflicts.find(new, f"{host}/net.d", {})) == expected
