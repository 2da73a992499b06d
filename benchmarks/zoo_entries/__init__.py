"""The models of the zoo, one file for each package they come from."""
