"""Carries decisions out: the supervisor's loop, its channel, the journal, the run's directory, what people see."""
