"""The settings of the runtimes, read as the runtimes read them."""

import shutil

import pytest

from cni.errors import Code
from podwire import runtimes

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
    """A root file system on which nothing is installed."""
    for name in ("_RUN", "_CONTAINERD", "_CRIO", "_CRIO_MORE", "_PODMAN_CHOICE"):
        monkeypatch.setattr(runtimes, name, f"{tmp_path}{getattr(runtimes, name)}")
    for name in ("_PROGRAM_DIRS", "_PODMAN", "_PODMAN_HELPER_DIRS"):
        monkeypatch.setattr(runtimes, name, tuple(f"{tmp_path}{path}" for path in getattr(runtimes, name)))
    return tmp_path


def write(host, path, text):
    """Writes a file."""
    place = host / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)


@pytest.fixture
def found(host):
    """Returns the one runtime that is installed, after its program was."""

    def find(program):
        write(host, f"usr/bin/{program}", "")
        (one,) = runtimes.list_installed({})
        return one

    return find


def test_what_is_not_installed_is_not_mentioned(host):
    """Settings that `apt remove` has left are no runtime; a program on PATH, or a running one's directory, is."""
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
def test_containerd_by_the_version_of_its_file(host, found, text, bin_dirs, conf_dir):
    """Each version of the file has its own section; one of another version counts for nothing, as in containerd."""
    if text is not None:
        write(host, "etc/containerd/config.toml", text)
    one = found("containerd")
    assert (one.bin_dirs, one.conf_dir, one.problem) == (bin_dirs, conf_dir, None)
    assert bool(one.source) == (bin_dirs != ("/opt/cni/bin",))


def test_containerd_imports(host, found):
    """A file that is imported replaces the whole section of the plugin; files import each other without an end."""
    main = "imports = ['conf.d/*.toml', 'last.toml']\n" + DEBIAN_12
    write(host, "etc/containerd/config.toml", main)
    write(host, "etc/containerd/last.toml", "imports = ['config.toml']")
    write(host, "etc/containerd/conf.d/a.conf", VERSION_3)
    assert found("containerd").bin_dirs == ("/usr/lib/cni",)
    section = '[plugins."io.containerd.grpc.v1.cri"{}]\n'
    write(host, "etc/containerd/conf.d/a.toml", section.format("") + "sandbox_image = 'x'")
    assert found("containerd").bin_dirs == ("/opt/cni/bin",)
    write(host, "etc/containerd/conf.d/b.toml", section.format(".cni") + "bin_dir = '/b'")
    one = found("containerd")
    assert (one.bin_dirs, one.source) == (("/b",), f"{host}/etc/containerd/conf.d/b.toml")


def test_containerd_of_docker(host, found):
    """Docker's package disables the CRI plugin: that containerd runs no CNI plugins."""
    write(host, "etc/containerd/config.toml", 'disabled_plugins = ["cri"]')
    assert "disabled_plugins" in found("containerd").without_cni


def test_crio(host, found):
    """Each file of crio.conf.d overrides the keys of those before it."""
    assert found("crio").bin_dirs == ("/opt/cni/bin",)
    write(host, "etc/crio/crio.conf", "[crio.network]\nplugin_dirs = ['/a']\nnetwork_dir = '/n/'\n")
    write(
        host, "etc/crio/crio.conf.d/10-x.conf", "[crio.network]\nplugin_dirs = [\n  '/b', # the package's\n  '/c/',\n]"
    )
    one = found("crio")
    assert (one.bin_dirs, one.conf_dir, one.source) == (("/b", "/c"), "/n/", f"{host}/etc/crio/crio.conf.d/10-x.conf")


def test_podman(host, found):
    """The vendor's file, the administrator's, and its drop-ins count, in this order, and only those named *.conf."""
    usual = found("podman")
    assert (usual.bin_dirs[-2:], usual.conf_dir, usual.without_cni) == (
        ("/usr/lib/cni", "/opt/cni/bin"),
        "/etc/cni/net.d",
        "",
    )
    write(host, "usr/share/containers/containers.conf", "[network]\ncni_plugin_dirs = ['/a']\n")
    write(host, "etc/containers/containers.conf.d/1.conf", "[network]\ncni_plugin_dirs = ['/b']\n")
    write(host, "etc/containers/containers.conf.d/2.toml", "[network]\ncni_plugin_dirs = ['/c']\n")
    write(host, "etc/containers/containers.conf", "[network]\ncni_plugin_dirs = ['/d']\nnetwork_config_dir = '/n'\n")
    one = found("podman")
    assert (one.bin_dirs, one.conf_dir) == (("/b",), "/n")
    assert one.source == f"{host}/etc/containers/containers.conf.d/1.conf"


def test_podman_s_network_backend(host, found):
    """Netavark is what a file names, what podman once chose, or what is installed; "cni" in a file comes first."""
    write(host, "usr/lib/podman/netavark", "")
    assert "netavark" in found("podman").without_cni
    write(host, "var/lib/containers/storage/defaultNetworkBackend", "cni")
    assert found("podman").without_cni == ""
    write(host, "etc/containers/containers.conf", '[network]\nnetwork_backend = "netavark"\n')
    assert 'network_backend = "netavark"' in found("podman").without_cni
    shutil.rmtree(host / "var")
    write(host, "etc/containers/containers.conf", '[network]\nnetwork_backend = "cni"\n')
    assert found("podman").without_cni == ""


@pytest.mark.parametrize(
    ("text", "code"), [("x = ", Code.DECODING_FAILURE), (b"\xff".decode("latin-1") * 2, Code.DECODING_FAILURE)]
)
@pytest.mark.parametrize("program", ["containerd", "crio", "podman"])
def test_settings_that_are_no_toml(host, found, program, text, code):
    """What cannot be read is a problem that names the file; nothing is guessed."""
    for path in ("containerd/config.toml", "crio/crio.conf", "containers/containers.conf"):
        write(host, f"etc/{path}", text)
    one = found(program)
    assert one.problem.code == code
    assert f"{host}/etc/" in one.problem.msg
    assert one.bin_dirs == ()


def test_where_to_install(tmp_path):
    """Into the first directory that has one of the files, else the first that is there, else the first."""
    places = [tmp_path / name for name in ("absent", "present", "taken")]
    one = runtimes.Runtime("x", tuple(map(str, places)))
    assert one.install_dir(["bridge"]) == str(places[0])
    places[1].mkdir()
    assert one.install_dir(["bridge"]) == str(places[1])
    places[2].mkdir()
    (places[2] / "bridge").touch()
    assert one.install_dir(["bridge"]) == str(places[2])
    assert one.install_dir(["ptp"]) == str(places[1])
