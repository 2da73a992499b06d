"""Settings found on public or made-up data, which is free, or on private data, which is paid for."""
