"""Whether records influence each other's losses, found by running the user's own code again with other records."""
