"""`make check`, `make test` and `make test-all`: runs the parts of the test suite in parallel and prints one total."""
