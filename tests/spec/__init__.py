"""Every built plugin against the CNI specification; a new plugin is picked up by its file's name."""
