"""What one short-lived process needs, with the standard library alone: signals, undo, child processes, files."""
