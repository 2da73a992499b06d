"""Device code in Triton: to be imported only where triton is installed."""
