"""Single faults in the product, which the tests must notice: `make mutants`.

cosmic-ray runs one fixed command for all of its general faults, and mutmut chooses a mutant by an environment variable,
which the tests of programs remove: so the faults, the choice of tests and the run are here.
"""
