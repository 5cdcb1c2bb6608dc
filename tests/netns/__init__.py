"""What each built plugin does to a real kernel, in throwaway namespaces."""
