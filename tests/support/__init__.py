"""What the tests share: running a built plugin, throwaway namespaces, network states; README.md lists the modules."""
