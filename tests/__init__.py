"""The tests: unit (no root), netns (a real kernel), spec (every built plugin), clients (real runtimes)."""
