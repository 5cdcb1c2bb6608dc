"""What `podwire doctor` looks at: a file for each group of checks."""
