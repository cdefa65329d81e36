"""Everything that shoal decides: plain functions and objects without I/O, clock, threads or randomness of their own."""
