"""The API for programs with threads; ``lockkit`` shows it."""
