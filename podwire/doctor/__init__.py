"""The checks of `podwire doctor`, one file for each group."""
