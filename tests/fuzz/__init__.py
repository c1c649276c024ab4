"""Fuzzing of everything that reads files: ``make fuzz`` runs it, and ``make test`` a little of it."""
