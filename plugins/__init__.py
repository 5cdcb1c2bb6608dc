"""Interface and chained plugins: each folder is one binary of the same name."""
