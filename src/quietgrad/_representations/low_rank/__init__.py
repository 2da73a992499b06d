"""Low-rank carriers of each weight matrix."""
