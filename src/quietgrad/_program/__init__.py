"""Several releases under one plan: statistics of all records first, training after them."""
