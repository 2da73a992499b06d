"""Everything around the library: data, models, training, comparison, reports, command line."""
