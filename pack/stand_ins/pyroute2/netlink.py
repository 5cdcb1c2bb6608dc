"""`pyroute2.netlink` for kernel.codec: what kernel.wire reads of a message class, and no codec."""


class nla:  # noqa: N801
    """An attribute, which may have fixed fields and attributes of its own."""

    fields: tuple[tuple[str, str], ...] = ()
    nla_map: tuple[tuple[int, str, str], ...] = ()

    class cdata:  # noqa: N801
        """Bytes; kernel.wire goes by the name."""


class nlmsg(nla):  # noqa: N801
    """A message."""
