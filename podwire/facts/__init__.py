"""What is read of the node and its pods before anything is concluded from it."""
