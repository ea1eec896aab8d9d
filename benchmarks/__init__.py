"""Benchmarks, one command each: `python -m benchmarks.strength --preset quick`, and so on."""
