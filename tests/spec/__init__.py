"""Tests of every built plugin against the CNI specification; the plugins are the files of the directory."""
