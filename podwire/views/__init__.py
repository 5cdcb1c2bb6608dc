"""The node as a person sees it: text, map, page and live table, and the selection of what is shown."""
