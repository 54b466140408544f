"""gin looks for includes in packages of the same name: a folder of tests needs to be one."""
