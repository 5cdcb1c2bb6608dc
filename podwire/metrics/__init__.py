"""The metrics of a node for Prometheus: addresses, attachments, leaks, findings, and the verbs in the log."""
