"""host-local: addresses from ranges, reserved as files on this host."""
