"""`make test` and `make check`: runs the parts of the test suite in parallel and prints one total."""
