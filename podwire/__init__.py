"""The executable: every plugin behind one entry, and the operator's tool. Nothing imports this package."""
