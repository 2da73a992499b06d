"""The league of private classifiers and regressors on real tables: `python -m benchmarks.tables`."""
