"""From the packages of this repository to one executable file; README.md describes how and why."""
