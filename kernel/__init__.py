"""Everything that touches Linux: namespaces, netlink, sysctls. The only room that imports pyroute2 and jeepney."""
