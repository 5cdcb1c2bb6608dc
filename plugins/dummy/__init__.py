"""dummy: an interface that has addresses and discards what is sent on it."""
