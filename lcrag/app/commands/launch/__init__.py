"""`lcrag launch`: starts a command on the hosts of a cluster, and again after a preemption."""
