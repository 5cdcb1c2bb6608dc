"""`jeepney` without the modules that its own __init__ loads: kernel.dbus names those it needs."""
