"""Where hosts come from: each module is one engine."""
