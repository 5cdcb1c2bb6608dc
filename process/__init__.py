"""Building blocks of a short-lived process, standard library only: signals, undo, child processes, logs, files."""
