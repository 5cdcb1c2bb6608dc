"""Single faults in the product, which the tests must notice: `make mutants`.

mutmut selects a mutant by an environment variable, which our tests clear; cosmic-ray runs one fixed command for all.
"""
