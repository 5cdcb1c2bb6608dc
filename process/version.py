"""The version of podwire: of the executable and of the agent."""

__version__ = "1.0.0"
