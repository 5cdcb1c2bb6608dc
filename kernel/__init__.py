"""Everything that touches Linux: namespaces, netlink, sysctls. Only this package imports pyroute2 and jeepney."""
