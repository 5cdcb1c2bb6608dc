"""What is wrong with the network configurations of a node, found without starting a pod.

One rule: what a plugin or libcni refuses is found by their own readers; here stands what they cannot see (other files,
misspelt names, what is missing) and where it is in the text.
"""
