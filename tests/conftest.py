"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# A machine that is busy with other work is slow, which says nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
