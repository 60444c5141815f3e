"""The same trainings in this and in other libraries: `python -m benchmarks.peers --help`."""
