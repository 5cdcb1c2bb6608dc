"""Rules for the sources, the pages and the Makefile: names, words, links, commands, examples, lists of files."""
