"""Lives inside a worker: the process's main function, its session, the link to the supervisor."""
