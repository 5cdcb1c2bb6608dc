"""What the tests share: running a built plugin, throwaway namespaces, network states to compare."""
