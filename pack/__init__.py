"""From the packages of this repository to one executable file; README.md here tells how and why."""
