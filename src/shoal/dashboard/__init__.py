"""A page in the browser that shows runs and searches, live or long ended. ``shoal dashboard`` starts it."""
