"""The daemon of dhcp: acquires, renews and releases leases for the plugin."""
