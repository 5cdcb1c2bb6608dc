"""Tests of the executable, independent of the plugin that it runs as."""
