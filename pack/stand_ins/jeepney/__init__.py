"""`jeepney` without the modules that its __init__ loads: kernel.dbus imports those that it needs."""
