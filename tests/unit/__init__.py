"""Tests of pure code: no root, no kernel, no built files."""
