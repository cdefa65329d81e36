"""Runs on each machine: starts workers, watches, ends and fences them, collects what they print."""
