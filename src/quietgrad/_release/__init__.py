"""The one place where noise meets the ledger."""
