"""Everything that shoal decides, as plain functions and objects without I/O, clock, threads or randomness of their own."""
