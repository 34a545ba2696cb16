"""One profile for all fuzz tests: no files, no clocks of Hypothesis's own."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "cloche",
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cloche")
