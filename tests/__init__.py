"""The tests: rules (sources, pages), unit (no root), netns (a real kernel), spec (every plugin), clients (runtimes)."""
