"""How Hypothesis tries examples.

One rule: none is timed, since `make test` runs these tests beside many others; a whole test has pytest's time limit.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
