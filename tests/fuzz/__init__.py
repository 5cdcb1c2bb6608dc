"""Fuzzing: random changes of the plugins' input, after which each verb must return a result or an error object."""
