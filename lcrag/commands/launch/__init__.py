"""`lcrag launch`: starts a command on the hosts of a cluster, and restarts it after a preemption."""
