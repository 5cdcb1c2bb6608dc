"""The plugin host-device: moves an existing interface of the host into the container, and back."""
