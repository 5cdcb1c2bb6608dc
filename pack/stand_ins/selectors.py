"""`selectors` for socket, which uses it only in sendfile(); the real one needs `math`, with its tables."""
