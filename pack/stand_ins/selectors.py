"""`selectors` for socket, whose sendfile() alone would use it, and with it `math` and its tables."""
